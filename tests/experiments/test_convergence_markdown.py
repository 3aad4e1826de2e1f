"""What README says of convergence: right numbers, and sentences that fall whichever way they do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from markdown_tables import row
from training_tables import SPREAD, fake, rises, write_tables

from experiments.convergence import report as convergence_markdown


def trained(folder: Path, jagg: list[float], exact: list[float] | None = None, factor: float = 1.0) -> str:
    cells = {("exact", factor): exact or rises(0.4), ("jagg", factor): jagg}
    other = fake({key: [0.5 * rise for rise in values] for key, values in cells.items()}, metric="similarity")
    return convergence_markdown.markdown(write_tables(pd.concat([fake(cells), other]), folder))


def test_convergence_has_a_row_an_arm(tmp_path):
    text = trained(tmp_path, rises(0.2))
    assert text.startswith(
        "**m, DanceGRPO, comfortable** (many images per update), 8 prompts × 12 images of 21 sampling steps, "
        "from noise 0.6 on the weights: rise"
    )
    # The last quarter of the evaluations is the mean of 7/8 and 8/8 of the rise.
    cells = row(text, "JAGG, all groups")
    assert cells[0] == "6" and cells[-2:] == ["8", f"{8 * (80 + 50 + 2 * 50):,}"]
    mean = 15 / 16 * sum(rises(0.2)) / 6
    assert cells[1].startswith(f"{mean:+.4f}±") and cells[3].startswith(f"{mean / 2:+.4f}±")
    assert cells[2] == "-0.1875±0.0000"  # paired: the seeds' own effect is gone
    assert row(text, "exact")[2] == "-"


def test_the_best_of_several_rates_is_told_by_arm(tmp_path):
    cells = {("exact", 1.0): rises(0.4), ("exact", 2.0): rises(0.3)[:3], ("jagg", 1.0): rises(0.4)}
    cells |= {("jagg", 0.5): rises(0.1)[:3], ("jagg", 2.0): rises(0.5)[:3]}
    text = convergence_markdown.markdown(write_tables(fake(cells), tmp_path))
    assert (
        "Of learning rates ×1 and ×2 (3 seeds), the reward over the run was highest at ×1 for exact." in text
    )
    assert "Of learning rates ×0.5, ×1 and ×2 (3 seeds)" in text and "at ×2 for JAGG, all groups." in text
    assert "Of learning rates" not in trained(tmp_path / "one", rises(0.2))


def test_runs_that_are_not_complete_cost_nothing(tmp_path):
    cells = fake({("exact", 1.0): rises(0.4)})
    text = convergence_markdown.markdown(write_tables(cells[(cells.seed < 4) | (cells.step < 5)], tmp_path))
    assert row(text, "exact")[0] == "4" and row(text, "exact")[-2] == "8"


@pytest.mark.parametrize(
    ("jagg", "exact", "said"),
    [
        (rises(0.4, reverse=True), None, "This agrees with what is reported."),
        (rises(0.5), None, "at the end (higher)"),
        (rises(0.2), None, "This does not agree with what is reported."),
        ([0.1, 0.7, 0.3, 0.5, 0.2, 0.6], None, "This neither shows nor refutes what is reported."),
        (rises(0.4), [0.1, 0.9, -0.2, 0.3, 0.2, 0.1], "This says little, as the baseline hardly learned."),
        (rises(0.4)[:2], None, "not to be judged without 3 seeds"),
        (rises(0.4), rises(-0.4), "not to be judged without 3 seeds and a baseline that rose"),
    ],
)
def test_what_is_reported_of_quality_is_judged(tmp_path, jagg, exact, said):
    text = trained(tmp_path, jagg, exact)
    assert "Reported of JAGG: \"follows the baseline's curve; equal or slightly above" in text
    assert said in text


def test_stability_is_the_seeds_spread(tmp_path):
    wide = [0.4 + 20 * s for s in SPREAD]
    assert "Its seeds spread 20.00 times as far as exact's (p 0.00: less stable)." in trained(tmp_path, wide)
    text = trained(tmp_path, rises(0.4, reverse=True))
    assert "no difference shown" in text and "differs from exact in nothing beyond its interval" in text


def test_another_rate_is_named(tmp_path):
    assert "(many images per update; learning rate ×3)" in trained(tmp_path, rises(0.4), factor=3.0)


def test_without_jagg_nothing_is_said_of_it(tmp_path):
    text = convergence_markdown.markdown(write_tables(fake({("exact", 1.0): [0.4]}), tmp_path))
    assert "Reported" not in text and "needs 3 seeds or more" in text
