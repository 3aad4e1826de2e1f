"""Result tables after kills, torn lines, damage, failed writes and a second writer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from result_tables import measure, open_table, row

from repro import results


@pytest.mark.parametrize("torn", ["2,exa", "2,exact,1,true", "2,jagg,0.1", "\ufffd", ","])
def test_a_torn_last_line_is_dropped_and_measured_again(tmp_path, torn):
    whole = measure(tmp_path / "t.csv")
    lines = whole.decode().splitlines(keepends=True)
    (tmp_path / "t.csv").write_text("".join(lines[:5]) + torn)
    with open_table(tmp_path / "t.csv") as table:
        assert table.repaired == torn and len(table) == 4
    assert measure(tmp_path / "t.csv") == whole


def test_a_torn_header_is_no_obstacle(tmp_path):
    whole = measure(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("group,sch")
    assert measure(tmp_path / "t.csv") == whole


@pytest.mark.parametrize(
    "damage",
    ["0,exact,1\n", "0,exact,much,true\n", "1.5,exact,1,true\n", "0,exact,1,yes\n", "\0\0\0\n", "\n"],
)
def test_damage_elsewhere_is_refused_with_the_line(tmp_path, damage):
    measure(tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines(keepends=True)
    (tmp_path / "t.csv").write_text("".join([*lines[:2], damage, *lines[2:]]))
    with pytest.raises(ValueError, match=r"damaged at line 3 .* --fresh"):
        open_table(tmp_path / "t.csv")


def test_a_repeated_key_in_the_file_is_refused(tmp_path):
    measure(tmp_path / "t.csv")
    with open(tmp_path / "t.csv", "a") as file:
        file.write("0,jagg,0.4,false\n")
    with pytest.raises(ValueError, match="group=0 scheme=jagg a second time"):
        open_table(tmp_path / "t.csv")


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "t.csv"
    first, late = open_table(path), open_table(path)  # neither has a file yet
    first.append(row(0))
    with pytest.raises(ValueError, match="another process is writing"):
        late.append(row(0))
    with pytest.raises(ValueError, match="another process is writing"):
        open_table(path)
    with pytest.raises(ValueError, match="another process is writing"):
        open_table(path, fresh=True)
    first.append(row(1))
    first.close()
    with pytest.raises(ValueError, match="another process is writing"):
        late.append(row(5))  # would have replaced the rows that the first one wrote
    with open_table(path) as table:
        assert len(table) == 2


def test_fresh_keeps_the_lock_while_old_rows_give_way(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    with open_table(path) as table:
        table.append(row(0))
    refused = []

    def another(table):
        with pytest.raises(ValueError, match="another process is writing"):
            open_table(path, fresh=True)
        refused.append(path.read_text().count("\n"))

    monkeypatch.setattr(results.Table, "_write_provenance", another)
    with open_table(path, fresh=True) as table:
        table.append(row(0))
    assert refused == [1] and len(results.read(path)) == 1  # the header alone, then the new row


def test_a_failed_write_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    with open_table(path) as table:
        table.append(row(0))
        before = path.read_bytes()

        def disk_full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", disk_full)
            with pytest.raises(OSError, match="No space"):
                table.append(row(1))
        assert path.read_bytes() == before
        table.append(row(1))
        assert len(results.read(path)) == 2


WRITER = """
import sys
from pathlib import Path
from repro.results import Table
columns = {"cell": int, "part": int, "value": float}
with Table(sys.argv[1], columns, ["cell", "part"], provenance={"config": {}, "seed": 0}) as table:
    for cell in range(300):
        if not table.has(cell=cell, part=0):
            table.append(*({"cell": cell, "part": part, "value": cell / (part + 3)} for part in range(5)))
"""


def test_kill_9_in_the_midst_of_appends_loses_and_repeats_nothing(tmp_path):
    command = [sys.executable, "-c", WRITER]
    subprocess.run([*command, str(tmp_path / "whole.csv")], check=True)
    whole = (tmp_path / "whole.csv").read_bytes()
    path = tmp_path / "killed.csv"
    chance = random.Random(0)
    kills = rows = 0
    deadline = time.monotonic() + 300
    while True:
        assert time.monotonic() < deadline, f"not done after {kills} kills"
        child = subprocess.Popen([*command, str(path)])
        while child.poll() is None and (
            not path.exists() or len(path.read_bytes().splitlines()) <= rows + 100
        ):
            time.sleep(0.001)  # let it get some cells further each time
        time.sleep(chance.uniform(0, 0.01))
        child.send_signal(signal.SIGKILL)
        if child.wait() == 0:
            break
        kills += 1
        lines = path.read_bytes().splitlines(keepends=True)
        assert b"".join(lines) == whole[: len(path.read_bytes())]
        assert lines[-1].endswith(b"\n") and (len(lines) - 1) % 5 == 0, "a cell is there in part"
        rows = len(lines)
    assert kills >= 3
    assert path.read_bytes() == whole
