"""What the report has of convergence, and its figures: right numbers of made-up runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from markdown_tables import row
from training_tables import SPREAD, fake, rises, write_tables

from experiments.common.findings import Judgement
from experiments.common.intervals import Verdict
from experiments.convergence import figure, report
from experiments.convergence.analysis import following, learned, off_policy, runs
from repro.results import read


def trained(folder: Path, jagg: list[float], exact: list[float] | None = None, factor: float = 1.0) -> str:
    cells = {("exact", factor): exact or rises(0.4), ("jagg", factor): jagg}
    other = fake({key: [0.5 * rise for rise in values] for key, values in cells.items()}, metric="similarity")
    return report.markdown(write_tables(pd.concat([fake(cells), other]), folder))


def test_a_row_an_arm(tmp_path):
    text = trained(tmp_path, rises(0.2))
    cells, exact = row(text, "JAGG, all groups"), row(text, "exact")
    # The last quarter of the evaluations is the mean of 7/8 and 8/8 of the rise.
    mean = 15 / 16 * sum(rises(0.2)) / 6
    assert cells[0] == "6" and cells[1].startswith(f"{mean:+.4f}±")
    # Paired: the seeds' own effect is gone, and half of exact's rise is missing.
    in_percent = -100 * 0.2 / (sum(rises(0.4)) / 6)
    assert cells[2:4] == [f"{in_percent:+.1f} ({in_percent:+.1f} … {in_percent:+.1f})"] * 2
    assert cells[4:] == ["8", f"{8 * (80 + 50 + 2 * 50):,}"] and exact[2:4] == ["-", "-"]
    other = row(text, "similarity")
    assert (
        other[0].startswith(f"{sum(rises(0.4)) / 12 * 15 / 16:+.4f}±")
        and other[1] == f"{-0.1 * 15 / 16:+.4f}±0.0000"
    )


def test_the_best_of_several_rates_is_told_by_arm(tmp_path):
    cells = {("exact", 1.0): rises(0.4), ("exact", 2.0): rises(0.3)[:3], ("jagg", 1.0): rises(0.4)}
    cells |= {("jagg", 0.5): rises(0.1)[:3], ("jagg", 2.0): rises(0.5)[:3]}
    text = report.rates_sentence(runs(fake(cells)))
    assert "×1 and ×2 (3 seeds)" in text and "at ×1 for exact." in text
    assert "×0.5, ×1 and ×2 (3 seeds)" in text and "at ×2 for JAGG, all groups." in text
    assert report.rates_sentence(runs(fake({("exact", 1.0): rises(0.4)}))) == ""


def test_runs_that_are_not_complete_cost_nothing(tmp_path):
    cells = fake({("exact", 1.0): rises(0.4)})
    text = report.markdown(write_tables(cells[(cells.seed < 4) | (cells.step < 5)], tmp_path))
    assert row(text, "exact")[0] == "4" and row(text, "exact")[-2] == "8"


def test_exploratory_verdicts_are_corrected_for_their_number():
    # Within the margin by one test, which is not enough where several are made.
    near = [0.4 + x for x in (0.008, -0.024, 0.015)]
    arms = {("exact", 1.0): rises(0.4)[:3], ("jagg", 1.0): near, ("routed", 1.0): near}
    table = pd.concat([fake(arms), fake(arms, "paper-eta")])
    found = following(runs(table))
    p = found["comfortable", "jagg"].comparisons["curve"].p_equivalence
    assert 0.05 / 3 < p < 0.05
    verdicts = {key: of.verdicts["curve"] for key, of in found.items()}
    assert verdicts.pop(("comfortable", "jagg")) is Verdict.EQUAL
    assert set(verdicts.values()) == {Verdict.UNDECIDED} and len(verdicts) == 3


@pytest.mark.parametrize(
    ("values", "expected", "by_the_old_bar"),
    [
        ([0.5, 0.6, 0.55, 0.5, 0.6, 0.55], True, True),
        ([0.1, 0.3, 0.1, 0.3, 0.2, 0.4], True, False),
        ([0.1, 0.9, -0.6, 0.3, -0.2, 0.1], False, False),
    ],
)
def test_where_the_rule_for_learning_was_changed_the_report_says_so(values, expected, by_the_old_bar):
    assert learned(values) is expected
    assert ("the rule was changed" in report.learning_sentence(pd.Series(values))) is (
        expected != by_the_old_bar
    )


def test_reward_hacking_is_named():
    def of(**others: float) -> str:
        tables = [
            fake({("exact", 1.0): rises(rise)}, metric=m) for m, rise in {"reward": 0.4, **others}.items()
        ]
        return report.hacking_sentence(runs(pd.concat(tables)))

    assert "similarity falls is being hacked" in of(similarity=-0.1, clipscore=0.1)
    assert "no sign of hacking" in of(similarity=0.1, diversity=-0.1)
    assert of(diversity=-0.1) == of(similarity=0.0) == ""


def test_stability_is_the_seeds_spread():
    def of(jagg: list[float]) -> str:
        return report.stability_words(runs(fake({("exact", 1.0): rises(0.4), ("jagg", 1.0): jagg})), "jagg")

    assert "20.00 times" in of([0.4 + 20 * s for s in SPREAD])
    assert "no difference shown" in of(rises(0.4, reverse=True))
    assert of(rises(0.4)) == ""  # seeds alike in both arms


def test_what_is_reported_is_judged_in_words(tmp_path):
    said = {judgement: report.beside(judgement) for judgement in Judgement}
    assert len(set(said.values())) == len(Judgement)
    assert said[Judgement.NOT_CONTRADICTED] in trained(tmp_path, rises(0.4, reverse=True))


def test_updates_off_policy_are_told_of(tmp_path):
    csv = write_tables(fake({("jagg", 1.0): rises(0.4)}), tmp_path)
    training = csv.with_name("convergence-training.csv")
    assert off_policy(csv).empty and report.off_policy_sentence(csv, "off-policy") == ""  # one a rollout
    changes = {"updates": 4, "ratio_deviation": 0.02, "clip_fraction": 0.3, "forwards": 75}
    read(training).assign(regime="off-policy", **changes).to_csv(training, index=False)
    assert off_policy(csv).extra_forwards.unique().tolist() == [0.5]
    told = report.off_policy_sentence(csv, "off-policy")
    assert "reached 0.02, 30 % were clipped, a backward took 0.5 forwards" in told


def test_an_arm_of_fewer_seeds_is_placed_by_its_difference_from_exact():
    rows = [
        {"arm": arm, "step": step, "seed": seed, "value": step * (seed + 1) + shift}
        for arm, seeds, shift in (("exact", 4, 0.0), ("routed", 2, 0.25), ("jagg", 4, 0.5))
        for step in (0, 4)
        for seed in range(seeds)
    ]
    points = figure.curve_points(pd.DataFrame(rows), "step").set_index(["arm", "x"])["mean"]
    assert points["exact", 4] == 4 * 2.5
    assert points["jagg", 4] == 4 * 2.5 + 0.5
    assert points["routed", 4] == 4 * 2.5 + 0.25  # its own seeds' mean is 4 * 1.5 + 0.25


@pytest.mark.parametrize(
    "cells",
    [
        fake({("exact", 3.0): [0.4], ("exact", 9.0): [0.5]}, "paper-eta"),  # one arm, as the sweep has
        pd.concat(
            fake({("exact", 1.0): rises(0.4), ("jagg", 1.0): rises(0.4)}, regime, metric)
            for regime in ("comfortable", "sparse")
            for metric in ("reward", "similarity", "diversity")
        ),
    ],
)
def test_figures(tmp_path, cells):
    if "sparse" in set(cells.regime):
        later = cells[(cells.regime == "sparse") & (cells.step > 0)]
        cells = pd.concat([cells, later.assign(step=later.step + 8)])
    main = figure.plot(write_tables(cells, tmp_path))
    assert main == tmp_path / "convergence.png" and main.stat().st_size > 4_000
    assert main.with_name("convergence-more.png").stat().st_size > 4_000
