"""Result tables: what is written, read back, replaced and refused; damage, failed writes, kills, two writers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_tables import COLUMNS, KEY, MADE_BY, measure, open_table, row

from repro import results
from repro.results import HIDDEN, Table, provenance_path


def test_a_table_reads_back_as_written(tmp_path):
    measure(tmp_path / "t.csv", groups=2)
    assert (tmp_path / "t.csv").read_text() == (
        "group,scheme,cosine,exact\n0,exact,1,true\n0,jagg,0.333333333,false\n1,exact,1,true\n1,jagg,0.25,false\n"
    )
    frame = results.read(tmp_path / "t.csv")
    assert frame["group"].tolist() == [0, 0, 1, 1]
    assert frame["exact"].tolist() == [True, False, True, False]


def test_the_bytes_do_not_depend_on_the_order_of_units(tmp_path):
    whole = measure(tmp_path / "a" / "t.csv", groups=11)
    table = open_table(tmp_path / "b" / "t.csv")
    order = list(range(11))
    random.Random(0).shuffle(order)
    for group in order:
        table.append(row(group, "jagg", 1 / (3 + group)), row(group, "exact", 1, True))
    assert (tmp_path / "b" / "t.csv").read_bytes() == whole  # 2 stands before 10: numbers, not text


def test_a_compressed_table_is_the_same_table(tmp_path):
    plain, packed = tmp_path / "t.csv", tmp_path / "t.csv.gz"
    measure(plain, groups=2)
    assert measure(packed, groups=2) == measure(packed, groups=2)
    assert results.read(packed).equals(results.read(plain)) and len(open_table(packed)) == 4
    assert provenance_path(packed) == provenance_path(plain)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ValueError, match="damaged"):
        open_table(packed)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1))
def test_any_text_on_one_line_survives(text):
    with tempfile.TemporaryDirectory() as folder:
        open_table(Path(folder) / "t.csv").append(row(0, text))
        table = open_table(Path(folder) / "t.csv")
        assert table.has(group=0, scheme=text) and len(table) == 1


def test_rows_are_checked_and_added_all_or_none(tmp_path):
    path = tmp_path / "t.csv"
    table = open_table(path)
    table.append(row(0))
    before = path.read_bytes()
    bad_rows = (
        {"group": 1},
        {**row(1), "colour": "red"},
        row(1, cosine="high"),  # type: ignore[arg-type]
        row(1, scheme=None),  # type: ignore[arg-type]
        row(2),
    )
    for bad in bad_rows:
        with pytest.raises(ValueError, match=r"t\.csv"):
            table.append(row(2), bad)
    assert path.read_bytes() == before and len(table) == 1
    with pytest.raises(ValueError, match="key of t.csv"):
        table.has(group=0)


def test_a_block_is_appended_once(tmp_path):
    """A process that was killed between two tables appends to both again; timings would differ."""
    table = open_table(tmp_path / "t.csv")
    assert table.append(row(0), row(1)) == 2
    before = (tmp_path / "t.csv").read_bytes()
    assert table.append(row(0, cosine=0.9), row(1)) == 0
    assert (tmp_path / "t.csv").read_bytes() == before


def test_provenance_tells_which_session_made_which_unit(tmp_path):
    path = tmp_path / "t.csv"
    first, second = open_table(path, session="a"), open_table(path, session="b")
    for table, group in ((first, 0), (second, 1), (first, 2), (second, 3)):
        table.append(row(group), unit=f"group {group}")
    content = json.loads(provenance_path(path).read_text())
    assert content["made"] == ["group 0", "group 2"] and content["config"] == MADE_BY["config"]
    assert content["resumed"] == [{"commit": "c0ffee", "session": "b", "made": ["group 1", "group 3"]}]


def test_another_configuration_or_other_columns_are_refused(tmp_path):
    measure(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=r"batch=4, not the 8 asked for now: pass another --out"):
        open_table(tmp_path / "t.csv", config={"model": "tiny-flux", "batch": 8})
    with pytest.raises(ValueError, match="has the columns .*, expected group,scheme; pass another --out"):
        Table(tmp_path / "t.csv", {"group": int, "scheme": str}, ["group"], provenance=MADE_BY)
    provenance_path(tmp_path / "t.csv").unlink()
    with pytest.raises(ValueError, match=r"lacks t\.provenance\.json"):
        open_table(tmp_path / "t.csv")


def test_fresh_replaces_once_there_is_a_new_row(tmp_path):
    path = tmp_path / "t.csv"
    before = measure(path), provenance_path(path).read_bytes()
    table = open_table(path, fresh=True, seed=1)
    assert len(table) == 0 and (path.read_bytes(), provenance_path(path).read_bytes()) == before
    table.append(row(0))
    assert json.loads(provenance_path(path).read_text())["seed"] == 1
    assert len(results.read(path)) == len(table) == 1


def test_of_several_that_were_started_fresh_the_first_replaces_and_the_others_add(tmp_path):
    path = tmp_path / "t.csv"
    measure(path)
    first, second = open_table(path, fresh=True), open_table(path, fresh=True)
    first.append(row(0))
    assert second.has(group=0, scheme="jagg")
    second.append(row(1))
    assert len(first) == len(second) == len(results.read(path)) == 2


def test_fresh_results_that_equal_the_old_ones_are_results(tmp_path):
    path = tmp_path / "t.csv"
    open_table(path).append(row(0))
    table = open_table(path, fresh=True)
    table.append(row(0))
    assert len(table) == 1


def test_read_keeps_names_that_look_like_missing_values(tmp_path):
    open_table(tmp_path / "t.csv").append(row(0, "none"), row(1, "NA", float("nan")), row(2, "null"))
    frame = results.read(tmp_path / "t.csv")
    assert frame["scheme"].tolist() == ["none", "NA", "null"]
    assert frame["cosine"].isna().tolist() == [False, True, False]
    with pytest.raises(FileNotFoundError, match="repro run"):
        results.read(tmp_path / "no.csv")
    for content in ("", "group,scheme\n"):
        (tmp_path / "empty.csv").write_text(content)
        with pytest.raises(ValueError, match="no rows yet"):
            results.read(tmp_path / "empty.csv")


@pytest.mark.parametrize(
    "damage",
    ["0,exact,1\n", "0,exact,much,true\n", "1.5,exact,1,true\n", "0,exact,1,yes\n", "\0\0\0\n", "\n"],
)
def test_damage_is_refused_with_the_line(tmp_path, damage):
    measure(tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines(keepends=True)
    (tmp_path / "t.csv").write_text("".join([*lines[:2], damage, *lines[2:]]))
    with pytest.raises(ValueError, match=r"damaged at line 3 .* --fresh"):
        open_table(tmp_path / "t.csv")


@pytest.mark.parametrize(("added", "told"), [("0,jagg,0.4,false\n", "a second time"), ("9,jagg,0.4", "last line")])
def test_a_repeated_key_and_a_torn_line_are_refused(tmp_path, added, told):
    measure(tmp_path / "t.csv")
    with open(tmp_path / "t.csv", "a") as file:
        file.write(added)
    with pytest.raises(ValueError, match=told):
        open_table(tmp_path / "t.csv")


def test_a_failed_write_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    table = open_table(path)
    table.append(row(0))
    before = path.read_bytes()

    def disk_full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk_full)
        with pytest.raises(OSError, match="No space"):
            table.append(row(1))
    assert path.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"t.csv", "t.provenance.json", HIDDEN}
    table.append(row(1))
    assert len(results.read(path)) == 2


def test_without_locks_it_goes_on_with_a_warning(tmp_path, monkeypatch, capsys):
    import filelock

    def unsupported(self, *_, **__):
        raise NotImplementedError("no flock here")

    monkeypatch.setattr(filelock.FileLock, "acquire", unsupported)
    measure(tmp_path / "t.csv")
    assert len(results.read(tmp_path / "t.csv")) == 8 and "no file locks" in capsys.readouterr().err


WRITER = """
import sys
from repro.results import Table
path, first, last = sys.argv[1], *map(int, sys.argv[2:])
columns = {"cell": int, "part": int, "value": float}
table = Table(path, columns, ["cell", "part"], provenance={"config": {}, "seed": 0, "session": str(first)})
for cell in range(first, last):
    if not table.has(cell=cell, part=0):
        table.append(*({"cell": cell, "part": part, "value": cell / (part + 3)} for part in range(5)))
"""


def writer(path: Path, first: int, last: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(first), str(last)])


def test_two_writers_of_which_one_is_killed_again_and_again_leave_the_bytes_of_one(tmp_path):
    assert writer(tmp_path / "whole.csv", 0, 240).wait() == 0
    path = tmp_path / "shared.csv"
    other, chance, kills = writer(path, 120, 240), random.Random(0), 0
    deadline = time.monotonic() + 120
    while True:
        child = writer(path, 0, 120)
        while child.poll() is None and not (path.exists() and len(path.read_bytes().splitlines()) > 40 * kills):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.01))
        if kills < 4:
            child.send_signal(signal.SIGKILL)
        if child.wait() == 0:
            break
        kills += 1
        assert (len(path.read_bytes().splitlines()) - 1) % 5 == 0, "a unit is there in part"
        assert time.monotonic() < deadline
    assert other.wait() == 0 and kills >= 3
    assert path.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not list(tmp_path.glob(".*.tmp")) or kills  # a killed writer may leave its temporary file


def test_the_table_is_what_its_layout_says(tmp_path):
    table = open_table(tmp_path / "t.csv")
    assert (table.columns, table.key_columns) == (COLUMNS, KEY)
