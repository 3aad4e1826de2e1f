"""Merging tables measured in parallel: the union, byte for byte, or one line and nothing written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.convergence import measure as convergence
import experiments
from experiments import cli
from repro.provenance import ROOT
from repro.results import HIDDEN, Table, merge, provenance_path

FAKE = '''
TABLES = {
    "cells.csv": ({"cell": int, "value": float}, ("cell",)),
    "cells-timings.csv": ({"cell": int, "seconds": float}, ("cell",)),
}
MERGED_FOLDERS = ("samples",)


class Config:
    """Of a fake."""
'''
CELLS = {"cell": int, "value": float}
TIMINGS = {"cell": int, "seconds": float}
TABLES = {"cells.csv": (CELLS, ("cell",)), "cells-timings.csv": (TIMINGS, ("cell",))}
IDENTITY = {"config": {"steps": 4}, "seed": 0, "checkpoint_sha256": "abc", "session": "s"}


def measure(folder: Path, *cells: int, date: str = "today", **changes) -> Path:
    """What a run leaves behind: a row of either table, and a picture, per cell."""
    provenance = {**IDENTITY, "date": date, "session": date, **changes}
    for name, (columns, key) in TABLES.items():
        table = Table(folder / name, columns, key, provenance=provenance)
        for cell in cells:
            table.append(dict(zip(columns, (cell, cell / 3), strict=True)), unit=str(cell))
    (folder / "samples").mkdir(exist_ok=True)
    for cell in cells:
        (folder / "samples" / f"{cell}.png").write_text(f"of {cell}")
    return folder


@pytest.fixture
def parts(tmp_path) -> list[Path]:
    """Two folders with different cells."""
    return [measure(tmp_path / "a", 0, 2, date="one"), measure(tmp_path / "b", 1, 3, date="two")]


def files(folder: Path) -> dict[str, bytes]:
    there = (p for p in folder.rglob("*") if p.is_file() and HIDDEN not in p.parts)
    return {str(p.relative_to(folder)): p.read_bytes() for p in there}


def test_the_union_keeps_every_row_as_it_was(parts, tmp_path):
    before = files(tmp_path)
    into = tmp_path / "new" / "whole"
    assert merge(TABLES, parts, into, ["samples"]) == {"cells.csv": 4, "cells-timings.csv": 4, "samples": 4}
    assert (into / "cells.csv").read_text() == (
        "cell,value\n0,0\n1,0.333333333\n2,0.666666667\n3,1\n"  # floats are not read and written again
    )
    assert {p.name: p.read_text() for p in (into / "samples").iterdir()} == {
        f"{cell}.png": f"of {cell}" for cell in range(4)
    }
    assert {name: content for name, content in files(tmp_path).items() if "whole" not in name} == before


def test_what_a_run_finds_there_is_done(parts, tmp_path):
    merge(TABLES, parts, tmp_path / "whole")
    table = Table(tmp_path / "whole" / "cells.csv", *TABLES["cells.csv"], provenance=IDENTITY)
    assert all(table.has(cell=cell) for cell in range(4))


def test_provenance_names_every_session_that_gave_rows(parts, tmp_path):
    merge(TABLES, parts, tmp_path / "whole")
    for name in TABLES:
        content = json.loads(provenance_path(tmp_path / "whole" / name).read_text())
        made = {"session": "one", "date": "one", "made": ["0", "2"]}
        others = [{"session": "two", "date": "two", "made": ["1", "3"]}]
        assert content == {**IDENTITY, **made, "resumed": others}


def test_repeating_a_merge_changes_nothing(parts, tmp_path):
    into = tmp_path / "whole"
    merge(TABLES, parts, into, ["samples"])
    before = files(into)
    assert merge(TABLES, [*parts, parts[0]], into, ["samples"]) == dict.fromkeys([*TABLES, "samples"], 0)
    assert files(into) == before


def test_what_is_there_already_is_kept_and_added_to(parts, tmp_path):
    into = measure(tmp_path / "whole", 0, 7, date="zero")
    (into / "samples" / "0.png").write_text("kept")
    added = merge(TABLES, parts, into, ["samples"])
    assert added == {"cells.csv": 3, "cells-timings.csv": 3, "samples": 3}
    assert (into / "cells.csv").read_text().startswith("cell,value\n0,0\n1,0.333333333\n2,0.666666667\n")
    assert (into / "samples" / "0.png").read_text() == "kept"
    content = json.loads(provenance_path(into / "cells.csv").read_text())
    assert content["date"] == "zero" and [s["date"] for s in content["resumed"]] == ["one", "two"]


def test_a_later_part_adds_the_rows_that_came_since(parts, tmp_path):
    into = tmp_path / "whole"
    merge(TABLES, parts, into)
    measure(parts[1], 5)
    assert merge(TABLES, parts, into) == {"cells.csv": 1, "cells-timings.csv": 1}


def spoil_row(parts):
    path = parts[1] / "cells-timings.csv"
    path.write_text(path.read_text() + "2,9\n")


def spoil_json(parts):
    provenance_path(parts[1] / "cells.csv").write_text("{half")


def of_other(parts, **changes):
    shutil.rmtree(parts[1])
    measure(parts[1], 1, 3, **changes)


FAULTS = [
    (spoil_row, r"b/cells-timings\.csv and \S*a/cells-timings\.csv disagree on cell=2: leave one"),
    (lambda parts: of_other(parts, config={"steps": 8}), r"b/cells\.csv .*steps=8, not the 4 of \S*a/cells"),
    (lambda parts: of_other(parts, checkpoint_sha256="def"), r"checkpoint_sha256=def, not the abc of"),
    (lambda parts: (parts[1] / "cells-timings.csv").unlink(), r"no table \S*b/cells-timings\.csv: name"),
    (lambda parts: provenance_path(parts[1] / "cells.csv").unlink(), r"lacks cells\.provenance\.json"),
    (spoil_json, r"b/cells\.provenance\.json is not readable JSON"),
    (lambda parts: (parts[1] / "cells.csv").write_text("cell\n1\n"), r"has the columns cell, expected"),
    (lambda parts: parts.clear(), "nothing to merge: name the folders"),
]


@pytest.mark.parametrize("started", [False, True], ids=["new", "there"])
@pytest.mark.parametrize(("fault", "told"), FAULTS)
def test_a_fault_is_refused_in_one_line_and_nothing_is_written(parts, tmp_path, fault, told, started):
    into = tmp_path / "whole"
    if started:
        merge(TABLES, parts[:1], into)
        told = told.replace("a/", "(whole|a)/")
    fault(parts)
    before = files(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=told) as caught:
        merge(TABLES, parts, into, ["samples"])
    assert "\n" not in str(caught.value) and files(tmp_path) == before and into.exists() == started


def test_a_folder_is_not_merged_into_itself(parts):
    with pytest.raises(ValueError, match="into itself: leave it out"):
        merge(TABLES, parts, parts[0].parent / "b" / ".." / "a")


def test_the_table_that_tells_what_is_done_is_written_last(parts, tmp_path, monkeypatch):
    written = []
    add = Table._add
    monkeypatch.setattr(Table, "_add", lambda self, *a: (written.append(self.path.stem), add(self, *a))[1])
    merge(TABLES, parts, tmp_path / "whole")
    assert written == ["cells-timings"] * 2 + ["cells"] * 2


@pytest.fixture
def repro(parts, tmp_path, monkeypatch, capsys):
    """``repro(*arguments)`` beside the parts -> (status, stdout, stderr)."""
    for name, text in (("fake", FAKE), ("whole", "")):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").touch()
        (tmp_path / "packages" / name / "measure.py").write_text(text)
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path / "packages")])
    for module in ("experiments.fake", "experiments.whole"):
        for part in (module, f"{module}.measure"):
            monkeypatch.delitem(sys.modules, part, raising=False)
    monkeypatch.setattr(cli, "TABLES", {"fake": "", "whole": ""})
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(list(arguments))
        return status, *capsys.readouterr()

    return call


@pytest.mark.parametrize("arguments", [["a", "b", "--into", "x/y"], ["--into", "x/y", "a", "b"]])
def test_the_command_says_what_was_added(repro, tmp_path, arguments):
    told = "merged  x/y: cells.csv +4, cells-timings.csv +4, samples +4\n"
    assert repro("merge", "fake", *arguments) == (0, told, "")
    assert len((tmp_path / "x/y/cells.csv").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fake", "a", "b"], ["--into", "repro merge fake --help"]),
        (["fake", "--into", "c"], ["folder"]),
        (["fake", "a", "missing", "--into", "c"], ["no table missing/cells.csv"]),
        (["fake", "a", "b", "--into", "b"], ["b is to be merged into itself"]),
        (["whole", "a", "b", "--into", "c"], ["whole has no tables that can be merged"]),
        (["fakes", "a", "--into", "c"], ["no table fakes", "fake, whole"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(repro, tmp_path, arguments, told):
    status, out, err = repro("merge", *arguments)
    assert (status, out) == (2, ""), err
    for words in told:
        assert words in err
    assert not (tmp_path / "c").exists()


def test_convergence_may_be_merged(tmp_path):
    """Its keys are columns, and what tells that a cell is done comes first, so is written last."""
    assert next(iter(convergence.TABLES)) == "convergence.csv"
    for name, (columns, key) in convergence.TABLES.items():
        Table(tmp_path / name, columns, key, provenance={})


def test_merging_needs_no_torch():
    program = "import sys, repro.results; print({'torch', 'pandas'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "set()\n", run.stderr
