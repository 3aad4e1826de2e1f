"""Result tables: what is on disk after kills, repeats, torn lines and mixed-up settings."""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repro import provenance, results
from repro.fields import format_value, is_field
from repro.results import Table

COLUMNS = {"group": int, "scheme": str, "cosine": float, "exact": bool}
KEY = ("group", "scheme")
MADE_BY = {
    "config": {"model": "tiny-flux", "batch": 4},
    "seed": 0,
    "checkpoint_sha256": "abc",
    "commit": "c0ffee",
}


def test_rows_can_be_dropped_to_be_measured_again(tmp_path):
    rows = [{"group": g, "scheme": "jagg", "cosine": 0.5, "exact": False} for g in range(3)]
    path = tmp_path / "table.csv"
    with open_table(path) as table:
        table.append(*rows)
        assert table.get(group=1, scheme="jagg") == {
            **rows[1],
            "group": "1",
            "cosine": "0.5",
            "exact": "false",
        }
        table.drop(lambda row: int(row["group"]) >= 1)
        assert table.get(group=1, scheme="jagg") is None and len(table) == 1
        before = path.stat().st_mtime_ns
        table.drop(lambda row: False)
        assert path.stat().st_mtime_ns == before
        table.append(rows[2])
    with open_table(path) as table:
        assert len(table) == 2 and table.has(group=2, scheme="jagg")


def open_table(path: Path, fresh: bool = False, **changes) -> Table:
    return Table(path, COLUMNS, KEY, provenance={**MADE_BY, **changes}, fresh=fresh)


def row(group: int, scheme: str = "jagg", cosine: float = 0.5, exact: bool = False) -> dict:
    return {"group": group, "scheme": scheme, "cosine": cosine, "exact": exact}


def measure(path: Path, groups: int = 4) -> bytes:
    """A little experiment: two rows per group, what is there already is not measured again."""
    with open_table(path) as table:
        for group in range(groups):
            if not table.has(group=group, scheme="jagg"):
                table.append(row(group, "exact", 1, True), row(group, "jagg", 1 / (3 + group)))
    return path.read_bytes()


def test_a_table_reads_back_as_written(tmp_path):
    measure(tmp_path / "t.csv", groups=2)
    assert (tmp_path / "t.csv").read_text() == (
        "group,scheme,cosine,exact\n0,exact,1,true\n0,jagg,0.333333333,false\n1,exact,1,true\n1,jagg,0.25,false\n"
    )
    frame = results.read(tmp_path / "t.csv")
    assert frame["group"].tolist() == [0, 0, 1, 1]
    assert frame["exact"].tolist() == [True, False, True, False]


def test_identical_runs_give_identical_bytes_whether_interrupted_or_not(tmp_path):
    whole = measure(tmp_path / "a" / "t.csv")
    assert measure(tmp_path / "b" / "t.csv") == whole
    measure(tmp_path / "c" / "t.csv", groups=2)
    assert measure(tmp_path / "c" / "t.csv") == whole


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1 / 3, float, "0.333333333"),
        (np.float32(0.1), float, "0.100000001"),
        (torch.tensor(0.25), float, "0.25"),
        (-0.0, float, "0"),
        (3, float, "3"),
        (float("nan"), float, "nan"),
        (-float("inf"), float, "-inf"),
        (1e-30, float, "1e-30"),
        (np.int64(7), int, "7"),
        (torch.tensor(7), int, "7"),
        (np.bool_(True), bool, "true"),
        (None, str, ""),
        ("a, b", str, "a, b"),
    ],
)
def test_format(value, kind, text):
    assert format_value(value, kind) == text


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1.5, int), (True, int), (True, float), ("1", float), (1, bool), (1, str), ("", str), ("a\nb", str)],
)
def test_format_refuses_other_types(value, kind):
    with pytest.raises(ValueError):
        format_value(value, kind)


@given(st.floats(), st.integers(), st.booleans())
def test_what_is_written_is_recognised(number, integer, flag):
    for value, kind in ((number, float), (integer, int), (flag, bool)):
        assert is_field(format_value(value, kind), kind)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1))
def test_any_text_on_one_line_survives(text):
    with tempfile.TemporaryDirectory() as folder:
        with open_table(Path(folder) / "t.csv") as table:
            table.append(row(0, text))
        with open_table(Path(folder) / "t.csv") as table:
            assert table.has(group=0, scheme=text) and len(table) == 1


def test_rows_are_checked_and_added_all_or_none(tmp_path):
    path = tmp_path / "t.csv"
    with open_table(path) as table:
        table.append(row(0))
        before = path.read_bytes()
        for bad in (
            {"group": 1},
            {**row(1), "colour": "red"},
            row(1, cosine="high"),  # type: ignore[arg-type]
            row(1, scheme=None),  # type: ignore[arg-type]
            row(0),
        ):
            with pytest.raises(ValueError, match=r"t\.csv"):
                table.append(row(2), bad)
        with pytest.raises(ValueError, match="already has group=3"):
            table.append(row(3), row(3))
        assert path.read_bytes() == before and len(table) == 1
        with pytest.raises(ValueError, match="key of t.csv"):
            table.has(group=0)


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


def test_other_columns_are_refused(tmp_path):
    measure(tmp_path / "t.csv")
    with pytest.raises(
        ValueError, match="has the columns .*, expected group,scheme; pass another --out, or --fresh"
    ):
        Table(tmp_path / "t.csv", {"group": int, "scheme": str}, ["group"], provenance=MADE_BY)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"config": {"model": "tiny-flux", "batch": 8}}, "batch=4, not the 8 asked for now"),
        ({"config": {"model": "tiny-flux", "batch": 4, "eta": 0.7}}, "eta=None, not the 0.7 asked for now"),
        ({"seed": 1}, "seed=0, not the 1 asked for now"),
        ({"checkpoint_sha256": "def"}, "checkpoint_sha256=abc, not the def asked for now"),
    ],
)
def test_other_settings_are_refused_in_one_line(tmp_path, changes, told):
    whole = measure(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=told) as caught:
        open_table(tmp_path / "t.csv", **changes)
    assert "--out" in str(caught.value) and "--fresh" in str(caught.value) and "\n" not in str(caught.value)
    assert (tmp_path / "t.csv").read_bytes() == whole


def test_another_commit_or_date_is_resumed_and_recorded(tmp_path):
    path = tmp_path / "t.csv"
    measure(path, groups=1)
    first = json.loads(results.provenance_path(path).read_text())
    assert first == MADE_BY
    with open_table(path, commit="decade") as table:
        assert json.loads(results.provenance_path(path).read_text()) == first  # nothing added yet
        table.append(row(1))
        table.append(row(2))
    resumed = json.loads(results.provenance_path(path).read_text())
    assert resumed == {**MADE_BY, "resumed": [{"rows_before": 2, "commit": "decade"}]}


def test_fresh_replaces_rows_and_provenance(tmp_path):
    path = tmp_path / "t.csv"
    measure(path)
    with open_table(path, fresh=True, seed=1) as table:
        assert len(table) == 0
        table.append(row(0))
    assert json.loads(results.provenance_path(path).read_text())["seed"] == 1
    assert len(results.read(path)) == 1


def test_fresh_keeps_the_old_table_until_there_is_a_new_row(tmp_path):
    path = tmp_path / "t.csv"
    measure(path)
    before = path.read_bytes(), results.provenance_path(path).read_bytes()
    with open_table(path, fresh=True, seed=1):
        pass  # nothing could be measured
    assert (path.read_bytes(), results.provenance_path(path).read_bytes()) == before


@pytest.mark.parametrize("content", [None, "{half"])
def test_a_table_without_readable_provenance_is_refused(tmp_path, content):
    measure(tmp_path / "t.csv")
    beside = results.provenance_path(tmp_path / "t.csv")
    beside.unlink() if content is None else beside.write_text(content)
    with pytest.raises(ValueError, match="settings.*--fresh"):
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
    for cell in range(60):
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
            not path.exists() or len(path.read_bytes().splitlines()) <= rows + 20
        ):
            time.sleep(0.001)  # let it get some cells further each time
        time.sleep(chance.uniform(0, 0.02))
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


def test_read_keeps_names_that_look_like_missing_values(tmp_path):
    with open_table(tmp_path / "t.csv") as table:
        table.append(row(0, "none"), row(1, "NA", float("nan")), row(2, "null"))
    frame = results.read(tmp_path / "t.csv")
    assert frame["scheme"].tolist() == ["none", "NA", "null"]
    assert frame["cosine"].isna().tolist() == [False, True, False]
    with pytest.raises(FileNotFoundError, match="repro run"):
        results.read(tmp_path / "no.csv")
    (tmp_path / "empty.csv").write_text("group,scheme\n")
    with pytest.raises(ValueError, match="no rows yet"):
        results.read(tmp_path / "empty.csv")


@dataclass
class Config:
    model: str = "tiny-flux"
    etas: tuple[float, ...] = (0.3, 0.7)
    dtype: torch.dtype = torch.float32
    out: Path | None = None
    fresh: bool = False


def test_collect_tells_settings_code_and_machine(tmp_path):
    (tmp_path / "weights").write_bytes(b"w")
    found = provenance.collect(Config(out=Path("/elsewhere")), seed=3, checkpoint=tmp_path)
    assert found["config"] == {"model": "tiny-flux", "etas": [0.3, 0.7], "dtype": "torch.float32"}
    assert found["seed"] == 3
    assert found["checkpoint_sha256"] == provenance.checkpoint_sha256(tmp_path)
    assert found["versions"]["torch"] == importlib.metadata.version("torch")
    assert set(found["versions"]) == {
        "python",
        "torch",
        "diffusers",
        "transformers",
        "open_clip_torch",
        "numpy",
    }
    assert found["threads"] == torch.get_num_threads()
    assert found["cpu"] and found["device"] and found["date"].endswith("+00:00") and found["command"]
    json.dumps(found)
    path = tmp_path / "t.csv"
    with Table(path, COLUMNS, KEY, provenance=found) as table:
        table.append(row(0))
    other_place = provenance.collect(
        Config(out=tmp_path, fresh=True), seed=3, checkpoint=tmp_path / "weights"
    )
    same = {**other_place, "checkpoint_sha256": found["checkpoint_sha256"]}
    Table(path, COLUMNS, KEY, provenance=same).close()  # where a table goes is no setting


def test_code_version_is_this_checkouts():
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=provenance.ROOT, capture_output=True, text=True)
    if git.returncode:
        pytest.skip("not a git checkout")
    commit, dirty = provenance.code_version()
    assert commit == git.stdout.strip() and isinstance(dirty, bool)


def test_code_version_outside_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.code_version() == (None, None)


def test_checkpoint_hash_follows_names_and_contents_but_not_the_card(tmp_path):
    folder = tmp_path / "model"
    (folder / "vae").mkdir(parents=True)
    (folder / "vae" / "a.bin").write_bytes(b"1")
    (folder / "b.bin").write_bytes(b"2")
    hashes = [provenance.checkpoint_sha256(folder)]
    (folder / "README.md").write_text("a card")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("y")
    assert provenance.checkpoint_sha256(folder) == hashes[0]
    (folder / "b.bin").write_bytes(b"3")
    hashes.append(provenance.checkpoint_sha256(folder))
    (folder / "b.bin").rename(folder / "c.bin")
    hashes.append(provenance.checkpoint_sha256(folder))
    (folder / "c.bin").rename(folder / "vae" / "c.bin")
    hashes.append(provenance.checkpoint_sha256(folder))
    hashes.append(provenance.checkpoint_sha256(folder / "vae" / "c.bin"))
    assert len(set(hashes)) == 5
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        provenance.checkpoint_sha256(tmp_path / "nowhere")
