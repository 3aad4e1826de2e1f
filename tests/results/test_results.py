"""Result tables: what is written, read back, dropped, replaced and refused."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_tables import MADE_BY, measure, open_table, row

from repro import results
from repro.results import Table


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


def test_other_columns_are_refused(tmp_path):
    measure(tmp_path / "t.csv")
    with pytest.raises(
        ValueError, match="has the columns .*, expected group,scheme; pass another --out, or --fresh"
    ):
        Table(tmp_path / "t.csv", {"group": int, "scheme": str}, ["group"], provenance=MADE_BY)


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
