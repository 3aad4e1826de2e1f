"""The wall-clock table read back: savings, how far off the prediction they are, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from markdown_tables import row
from speedup_tables import made_up

from experiments.common.findings import Judgement
from experiments.speedup import figure, report
from experiments.speedup.analysis import (
    PASSES_SAVED,
    UNSAVED,
    Cell,
    Median,
    agreement,
    base,
    cells,
    coverage,
    findings,
    laps_path,
    left_out,
    median,
    null_cells,
    reduction,
)
from experiments.speedup.config import NULL, Setting


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
    seen = agreement(found)
    assert len(seen.clear) == len(seen.close) == len(seen.close_in_seconds) == 2
    assert not seen.covered and not seen.marked


def test_cells_are_shown_with_exact_first_and_of_one_setting(tmp_path: Path) -> None:
    found = cells(made_up(tmp_path, null=True))
    assert [c.scheme for c in found] == ["exact", NULL, "routed-0.6", "jagg-time"]
    assert {c.setting for c in found} == {Setting()}
    assert base(found, "dance_grpo") == found and base(found, "flow_grpo_fast") == []


def test_the_null_arm_saves_what_the_clock_errs(tmp_path: Path) -> None:
    found = cells(made_up(tmp_path, null=True))
    (null,) = null_cells(found)
    assert null.scheme == NULL and null.update == null.priced == (0, 0, 0)
    assert null not in agreement(found).clear


def test_disagreement_and_overhead_are_told_apart(tmp_path: Path) -> None:
    found = cells(made_up(tmp_path, slower=1.08))
    assert cell(found, "jagg-time").error == pytest.approx(0.08)
    seen = agreement(found)
    assert len(seen.clear) == 2 and not seen.close
    seen = agreement(cells(made_up(tmp_path, overhead=10.0)))
    assert not seen.clear and len(seen.marked) == 2


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


def test_a_prediction_within_the_interval_in_seconds_is_covered(tmp_path: Path) -> None:
    jagg_ = cell(cells(made_up(tmp_path)), "jagg-time")  # 37.5 % are predicted
    off = jagg_._replace(priced=Median(1 - 1.07 * (1 - jagg_.predicted_update), 0, 1))
    assert agreement([off]).close == [] and agreement([off]).close_in_seconds == [off]
    wide = off._replace(update=Median(0.5, 0.3, 0.6))
    assert agreement([wide]).close_in_seconds == [] and agreement([wide]).covered == [wide]


def test_a_table_without_its_laps_says_what_to_do(tmp_path: Path) -> None:
    csv = made_up(tmp_path)
    laps_path(csv).unlink()
    with pytest.raises(ValueError, match="has no speedup-laps.csv.gz beside it: measure"):
        cells(csv)


@pytest.mark.parametrize(
    ("measured", "judgement"),
    [
        (Median(0.178, 0.170, 0.186), Judgement.AGREES),
        (Median(0.160, 0.140, 0.179), Judgement.NOT_CONTRADICTED),
        (Median(0.160, 0.150, 0.172), Judgement.DISAGREES),
        (Median(0.250, 0.183, 0.300), Judgement.DISAGREES),
        (Median(0.280, -0.06, 0.31), Judgement.UNDECIDED),
    ],
)
def test_what_was_reported_is_judged_by_value_and_interval(
    tmp_path: Path, measured: Median, judgement: Judgement
) -> None:
    routed = cell(cells(made_up(tmp_path)), "routed-0.6")._replace(step=measured)
    found = reduction(routed)
    assert found and found.of == "step" and found.judgement is judgement


def test_findings_are_of_the_step_and_of_the_update(tmp_path: Path) -> None:
    step = findings(made_up(tmp_path))
    assert list(step) == ["step"] and step["step"].judgement is Judgement.AGREES and not step["step"].why
    (tmp_path / "fast").mkdir()
    update = findings(made_up(tmp_path / "fast", algorithm="flow_grpo_fast"))
    assert list(update) == ["update"] and update["update"].judgement is Judgement.DISAGREES
    assert update["update"].why


def test_another_mode_is_shown_and_not_judged_where_the_papers_was_not_timed(tmp_path: Path) -> None:
    csv = made_up(tmp_path)
    for path in (csv, laps_path(csv)):
        pd.read_csv(path).assign(weights="lora").to_csv(path, index=False)
    found = cells(csv)
    assert base(found, "dance_grpo") == found and base(found, "flow_grpo_fast") == []
    assert findings(csv) == {} and row(report.markdown(csv), "JAGG, 0.6 of the groups")[-1] == "-"
    figure.plot(csv)


def test_what_the_reported_update_would_contain_beside_the_passes() -> None:
    assert PASSES_SAVED == 6 / 16
    assert PASSES_SAVED / (1 + UNSAVED) == pytest.approx(0.30)


def test_medians_and_their_intervals() -> None:
    assert median([3.0]) == (3, 3, 3)
    assert median([5.0, 1, 3]) == (3, 1, 5)
    assert median(range(7)) == (3, 0, 6)  # 1 - 2/2^7 = 98 %; the next ones in would cover 88 %
    assert median(range(9)) == (4, 1, 7)  # 1 - 2(1 + 9)/2^9 = 96 %
    assert [left_out(n) for n in (1, 5, 8, 9, 10)] == [0, 0, 0, 1, 1]
    assert coverage(7, 0) == pytest.approx(1 - 2 / 2**7)
    assert coverage(10, 1) == pytest.approx(1 - 2 * 11 / 2**10)


@pytest.mark.parametrize("rounds", [3, 7, 10])
def test_reported_stands_beside_measured_and_predicted(tmp_path: Path, rounds: int) -> None:
    text = report.markdown(made_up(tmp_path, null=True, rounds=rounds))
    routed = row(text, "JAGG, 0.6 of the groups")
    assert routed == [
        "22.5 (22.5 … 22.5)",
        "22.5 (22.5 … 22.5)",
        "22.5",
        "17.8 (17.8 … 17.8)",
        "17.8",
        "step: 17.3 … 18.2",
    ]
    assert row(text, "JAGG, all groups")[-1] == "-"
    assert row(text, "exact again")[:3] == ["0.0 (0.0 … 0.0)", "0.0 (0.0 … 0.0)", "0.0"]
    head = text.split("\n")[0]
    assert ("min … max" in head) == (rounds < 9) and ("98 %" in head) == (rounds > 5)


def test_figures_are_drawn_of_any_table(tmp_path: Path) -> None:
    main = figure.plot(made_up(tmp_path))
    assert main.name == "speedup.png" and main.stat().st_size > 5_000
    assert (tmp_path / "speedup-more.png").stat().st_size > 5_000
