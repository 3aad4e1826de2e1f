"""What the report says of the benchmarks' table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.benchmarks.report import COLUMNS, KEY, jaggs_part, markdown
from repro.results import Table

COMMON = {"model": "m", "device": "c", "batch": 48, "rounds": 5, "min_s": 0.5}


def said(folder: Path, *rows: dict) -> str:
    csv = folder / "benchmarks.csv"
    nothing = {"plain_loop_s": None, "times_as_fast": None, "core_share": None}
    table = Table(csv, COLUMNS, KEY, provenance={"threads": 1}, fresh=True)
    table.append(*({**COMMON, **nothing, **row} for row in rows))
    return markdown(csv)


def test_ratios_stand_beside_what_was_asked_for(tmp_path: Path) -> None:
    text = said(
        tmp_path,
        {"benchmark": "rollout", "median_s": 2.0},
        {"benchmark": "update-jagg-paper", "median_s": 1.0, "plain_loop_s": 8.0, "times_as_fast": 8.0},
        {"benchmark": "update-jagg-chunk-1", "median_s": 2.0, "plain_loop_s": 8.0, "times_as_fast": 4.0},
        {"benchmark": "core-without-the-network", "median_s": 0.1, "core_share": 0.0123},
    )
    assert text.startswith("m on c, 1 thread: an update of 48 samples")
    # A table's rows stand in the order of their keys.
    assert "JAGG, anchor by anchor 4.0, JAGG, the paper's layout 8.0 (at least 7 was asked for)." in text
    assert text.endswith("takes 1.2 % of it (at most 3 % was asked for).")


def test_jaggs_part_is_against_exact_batched_alike() -> None:
    ratios = pd.Series({"update-exact-chunk-1": 2.0, "update-exact-chunk-2": 5.0, "update-jagg-paper": 8.0})
    assert jaggs_part(ratios) == pytest.approx(1.6)
    assert jaggs_part(ratios.drop("update-exact-chunk-2")) is None


def test_without_the_core_nothing_is_said_of_it(tmp_path: Path) -> None:
    row = {"benchmark": "update-jagg-paper", "median_s": 1.0, "plain_loop_s": 8.0, "times_as_fast": 8.0}
    assert "not the network" not in said(tmp_path, row)
