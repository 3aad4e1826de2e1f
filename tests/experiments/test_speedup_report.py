"""The wall-clock table read back: savings, how far off the prediction they are, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from speedup_tables import made_up

from experiments.speedup import figure
from experiments.speedup import report as speedup_report
from experiments.speedup.analysis import Cell, Median, cells, laps_path, median
from experiments.speedup.report import verdict


def cell(found: list[Cell], scheme: str) -> Cell:
    return next(c for c in found if c.scheme == scheme)


def test_the_papers_arithmetic_comes_back(tmp_path: Path) -> None:
    found = cells(made_up(tmp_path))
    routed = cell(found, "routed-0.6")
    assert routed.step.value == pytest.approx(18 / 101)
    assert routed.predicted_step == pytest.approx(18 / 101)
    assert routed.step.high - routed.step.low < 1e-9  # paired within rounds
    jagg_ = cell(found, "jagg-time")
    assert jagg_.update.value == pytest.approx(1 - 10 / 16)
    assert jagg_.predicted_update == pytest.approx(1 - 10 / 16)
    assert jagg_.error == pytest.approx(0, abs=1e-9)
    assert "within 5 % in 2 of 2 cells in forwards, in 2 in seconds" in verdict(found)


def test_disagreement_and_overhead_are_told(tmp_path: Path) -> None:
    found = cells(made_up(tmp_path, slower=1.08))
    assert cell(found, "jagg-time").error == pytest.approx(0.08)
    assert "in 0 of 2 cells" in verdict(found)
    found = cells(made_up(tmp_path, overhead=10.0))
    assert "2 more cells, marked *, with forwards too short for that: jagg-time, W 4, batch 12" in verdict(
        found
    )


def test_calls_with_fewer_anchors_are_told_where_a_call_costs(tmp_path: Path) -> None:
    csv = made_up(tmp_path)
    table = pd.read_csv(csv)
    jagg_rows = table.scheme == "jagg-time"
    table["anchor_chunk"], table.loc[jagg_rows, "backward_calls"] = 4, 3
    table.loc[~jagg_rows, "backward_calls"] = table.backwards // 4
    # A call of 4 steps takes 4 * 0.7 of the seconds of one of a single step, so fixed + rest = 1 and
    # fixed + 4 * rest = 2.8: 0.4 of the one, and so 0.4 / 0.7 of a forward of one step among 4.
    table["forward_s"] = 0.7 * table.forward_s
    table.to_csv(csv, index=False)
    laps = pd.read_csv(laps_path(csv)).assign(anchor_chunk=4)
    laps.to_csv(laps_path(csv), index=False)
    found = cells(csv)
    assert cell(found, "jagg-time").fewer_per_call == pytest.approx(0.4 / 0.7 * (3 / 10 - 1 / 4))
    assert cell(found, "exact").fewer_per_call == 0
    assert cell(found, "jagg-time").clear and not cell(found, "jagg-time")._replace(overhead=0.01).clear


def test_a_machine_that_slows_down_for_a_while_does_not_change_the_price(tmp_path: Path) -> None:
    jagg_ = cell(cells(made_up(tmp_path, bursts=True)), "jagg-time")
    assert jagg_.update.value == pytest.approx(1 - 10 / (1.5 * 16))
    assert jagg_.priced.value == pytest.approx(jagg_.predicted_update) == pytest.approx(1 - 10 / 16)


def test_how_far_the_clock_errs_is_told(tmp_path: Path) -> None:
    jagg_ = cell(cells(made_up(tmp_path)), "jagg-time")  # 37.5 % are predicted
    off = jagg_._replace(priced=Median(1 - 1.07 * (1 - jagg_.predicted_update), 0, 1))
    assert "in 0 of 1 cells in forwards, in 1 in seconds." in verdict([off])
    assert "Furthest apart in forwards: +7.0 % (jagg-time; W 4, batch 12" in verdict([off])
    wide = off._replace(update=Median(0.5, 0.3, 0.6))
    assert "in 0 in seconds, whose interval has the prediction in 1 more." in verdict([wide])
    same = jagg_._replace(
        predicted_update=0.0, update=Median(-0.03, -0.1, 0.02), priced=Median(0.004, 0, 0.01)
    )
    assert "came out -3 … -3 % shorter in seconds, +0.4 … +0.4 % in forwards" in verdict([same])
    assert "in 0 of 0 cells" in verdict([same]) and "very passes" not in verdict([jagg_])


def test_a_table_without_its_laps_says_what_to_do(tmp_path: Path) -> None:
    csv = made_up(tmp_path)
    laps_path(csv).unlink()
    with pytest.raises(ValueError, match="has no speedup-laps.csv.gz beside it: measure"):
        cells(csv)


def test_an_interval_around_nothing_is_not_called_consistent(tmp_path: Path) -> None:
    routed = cell(cells(made_up(tmp_path)), "routed-0.6")
    assert "consistent with the" in speedup_report.reported_sentence(routed)
    unsure = routed._replace(step=Median(0.28, -0.06, 0.31))
    assert "too uncertain to be held against the" in speedup_report.reported_sentence(unsure)


def test_medians_and_their_intervals() -> None:
    assert median([3.0]) == (3, 3, 3)
    assert median([5.0, 1, 3]) == (3, 1, 5)
    assert median(range(7)) == (3, 0, 6)  # 1 - 2/2^7 = 98 %; the next ones in would cover 88 %
    assert median(range(9)) == (4, 1, 7)  # 1 - 2(1 + 9)/2^9 = 96 %


def test_reported_stands_beside_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv = made_up(tmp_path)
    speedup_report.show(csv)
    printed = capsys.readouterr().out
    assert "17.8 ± 0.0" in printed and "reported" in printed and "step 17.3…18.2" in printed
    assert figure.plot(csv).stat().st_size > 10_000
