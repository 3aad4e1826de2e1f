"""What the report has of the ablation: contrasts beside what is reported, and rises by their cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_tables import row
from training_tables import fake, rises, write_tables

from experiments.ablation import measure as ablation
from experiments.ablation import report

JAGG, OWN = "JAGG, all groups − exact", "endpoints: own s − JAGG, all groups"


def ablated(folder: Path, cells: dict[tuple[str, float], list[float]]) -> str:
    cells = {("exact", 1.0): rises(0.4), ("jagg", 1.0): rises(0.4, reverse=True)} | cells
    csv = write_tables(fake(cells), folder)
    ablation.write(csv, ablation.Config())
    return report.markdown(csv.with_name("ablation.csv"))


def test_contrasts_have_reported_beside_measured(tmp_path):
    text = ablated(tmp_path, {("endpoints-own", 1.0): rises(0.2), ("subset", 1.0): rises(0.5)})
    primary = row(text, f"**{JAGG}**")
    assert primary[:2] == ["6", "equal or slightly above"] and primary[3] == primary[5] == "equal"
    own = row(text, OWN)
    # The reversed spread has the same mean.
    assert own[1] == "lower" and own[2].startswith(f"{-100 * 0.2 / (sum(rises(0.4)) / 6):+.1f} (")
    assert own[3] == own[5] == "lower"
    subset = row(text, "**exact on fewer steps, JAGG's cost − JAGG, all groups**")
    assert subset[1] == "-" and subset[3] == "higher"


@pytest.mark.parametrize("twice", [rises(0.1), rises(0.5)])
def test_contrasts_are_at_the_recipes_rate_and_at_each_arms_best(tmp_path, twice):
    cells = {("exact", 2.0): rises(0.1), ("jagg", 1.0): rises(0.2), ("jagg", 2.0): twice}
    cells |= {("endpoints-own", 1.0): rises(0.1), ("endpoints-own", 2.0): rises(0.0)}
    text = ablated(tmp_path, cells)
    exact, slow = sum(rises(0.4)) / 6, sum(rises(0.1)) / 6
    assert row(text, f"**{JAGG}**")[2].startswith(f"{-100 * 0.2 / exact:+.1f} (")
    assert row(text, f"{JAGG}, both at rate ×2")[2].startswith(f"{100 * (twice[2] - 0.1) / slow:+.1f} (")
    assert f"{OWN} |" in text and f"{OWN}, both" not in text  # that is in the CSV
    if twice[2] < 0.2:  # the recipe's rate is the best of all three, and told of above
        assert "best rate" not in text
    else:
        assert row(text, f"{JAGG}, each at its best rate")[2].startswith(f"{100 * 0.1 / exact:+.1f} (")


def test_a_rise_is_divided_by_what_it_cost(tmp_path):
    text = ablated(tmp_path, {})
    rise = 15 / 16 * sum(rises(0.4)) / 6
    exact, jagg = row(text, "exact"), row(text, "JAGG, all groups")
    assert exact[2].startswith(f"{rise / 800 * 1e6:+.3g}±")
    assert jagg[2].startswith(f"{rise / 400 * 1e6:+.3g}±")
    assert exact[4].startswith(f"{rise / 8 * 1e3:+.3g}±")
    assert "JAGG's rise is 2.00±" in text and "1.00±0.01 per second times exact's" in text


def test_of_a_baseline_that_did_not_learn_nothing_is_priced(tmp_path):
    text = ablated(tmp_path, {("exact", 1.0): [0.1, 0.9, -0.6, 0.3, -0.2, 0.1]})
    assert row(text, f"**{JAGG}**") and "per 10⁶" not in text
