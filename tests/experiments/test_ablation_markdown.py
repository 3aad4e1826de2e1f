"""What README says of the ablation: contrasts beside what is reported, and rises by their cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_tables import row
from training_tables import fake, rises, write_tables

from experiments.ablation import measure as ablation
from experiments.ablation import report as ablation_markdown


def ablated(folder: Path, readings: dict[str, list[float]], exact: list[float] | None = None) -> str:
    values = {"exact": exact or rises(0.4), "jagg": rises(0.4, reverse=True), **readings}
    cells = write_tables(fake({(arm, 1.0): of_arm for arm, of_arm in values.items()}), folder)
    ablation.write(cells, ablation.Config())
    return ablation_markdown.markdown(cells.with_name("ablation.csv"))


NOISE = [0.1, 0.7, 0.3, 0.5, 0.2, 0.6]


@pytest.mark.parametrize(
    ("own", "half", "said"),
    [
        (rises(0.2), rises(0.3), "2 lower, of 2 in all; this agrees."),
        (rises(0.2), NOISE, "1 lower and 1 undecided, of 2 in all; shown for some, refuted for none."),
        (
            rises(0.2),
            rises(0.4),
            "1 lower and 1 equal within the margin, of 2 in all; not consistently worse",
        ),
        (rises(0.6), NOISE, "1 higher and 1 undecided, of 2 in all; not consistently worse"),
        (NOISE, NOISE, "2 undecided, of 2 in all; neither shown nor refuted here."),
    ],
)
def test_what_is_reported_of_endpoints_is_judged(tmp_path, own, half, said):
    text = ablated(tmp_path, {"endpoints-own": own, "endpoints-half": half})
    assert "Reported of endpoints without interpolation: consistently worse than JAGG." in text
    assert said in text


def test_contrasts_have_reported_beside_measured(tmp_path):
    text = ablated(tmp_path, {"endpoints-own": rises(0.2), "subset": rises(0.5)})
    equal = row(text, "JAGG, all groups − exact")
    assert equal[:2] == ["6", "equal or slightly above"] and equal[5] == "equal within the margin"
    own = row(text, "endpoints: own s − JAGG, all groups")
    # The mean of eighths of a rise is 9/16 of it; the reversed spread has the same mean.
    assert (
        own[1] == "lower"
        and own[2].startswith(f"{-0.2 * 9 / 16:+.4f}±")
        and own[5] == own[9] == "lower"
        and own[3] == "0.03"
    )
    assert row(text, "exact on fewer steps, JAGG's cost − JAGG, all groups")[1] == "-"
    assert "not among what is reported, minus JAGG: higher (comfortable, 6 seeds)." in text


@pytest.mark.parametrize("twice", [rises(0.1), rises(0.5)])
def test_contrasts_are_at_the_recipes_rate_and_at_each_arms_best(tmp_path, twice):
    cells = {("exact", 1.0): rises(0.4), ("exact", 2.0): rises(0.1), ("jagg", 1.0): rises(0.2)}
    cells |= {("jagg", 2.0): twice, ("endpoints-own", 1.0): rises(0.1), ("endpoints-own", 2.0): rises(0.0)}
    csv = write_tables(fake(cells), tmp_path)
    ablation.write(csv, ablation.Config())
    text = ablation_markdown.markdown(csv.with_name("ablation.csv"))
    jagg, own = "JAGG, all groups − exact", "endpoints: own s − JAGG, all groups"
    assert row(text, jagg)[2].startswith(f"{-0.2 * 9 / 16:+.4f}±")
    assert row(text, f"{jagg}, both at rate ×2")[2].startswith(f"{(twice[2] - 0.1) * 9 / 16:+.4f}±")
    assert f"{own} |" in text and f"{own}, both" not in text  # that is in the CSV
    if twice[2] < 0.2:  # the recipe's rate is the best of all three, and told of above
        assert "best rate" not in text
    else:
        assert row(text, f"{jagg}, each at its best rate")[2].startswith(f"{0.1 * 9 / 16:+.4f}±")


def test_a_rise_is_divided_by_what_it_cost(tmp_path):
    text = ablated(tmp_path, {})
    rise = 15 / 16 * sum(rises(0.4)) / 6
    exact, jagg = row(text, "exact"), row(text, "JAGG, all groups")
    assert exact[2].startswith(f"{rise / 800 * 1e6:+.3g}±") and jagg[2].startswith(
        f"{rise / 400 * 1e6:+.3g}±"
    )
    assert exact[4].startswith(f"{rise / 8 * 1e3:+.3g}±")
    assert "JAGG's rise is 2.00±" in text and "1.00±0.01 per second times exact's (comfortable)." in text


def test_a_baseline_that_did_not_learn_judges_nothing(tmp_path):
    text = ablated(tmp_path, {"endpoints-own": rises(0.2)}, exact=[0.1, 0.9, -0.2, 0.3, 0.2, 0.1])
    assert "by less than 3 times its seeds' spread, too little to tell arms apart" in text
    assert "no regime yet in which the baseline was seen to learn" in text and "times exact's" not in text
