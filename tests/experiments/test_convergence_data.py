"""The convergence tables read back: runs, their outcomes, and the rates they are compared at."""

from __future__ import annotations

import pandas as pd
import pytest
from training_tables import fake, write_tables

from experiments.convergence.analysis import (
    at_factors,
    at_main_rate,
    best_factors,
    complete,
    differences,
    main_rate,
    runs,
    spent,
)
from repro.results import read
from repro.training.metrics import PHASES


def test_outcomes_are_rises_over_the_start():
    outcomes = runs(fake({("exact", 1.0): [0.8], ("jagg", 1.0): [0.4]}))
    exact = outcomes[outcomes.arm == "exact"].iloc[0]
    assert exact.start == 0.5
    assert exact.final == pytest.approx(0.75)  # mean of the last two of eight: 0.7 and 0.8
    assert exact.curve == pytest.approx(0.45)
    assert differences(outcomes, ("jagg", 1.0), ("exact", 1.0), "curve").tolist() == pytest.approx([-0.225])


def test_incomplete_runs_are_left_out(tmp_path):
    csv = tmp_path / "convergence.csv"
    (tmp_path / "convergence.provenance.json").write_text('{"config": {"steps": 8}}')
    table = fake({("exact", 1.0): [0.8, 0.8, 0.8]})
    table = table[~((table.seed == 1) & (table.step > 4)) & ~((table.seed == 2) & (table.step == 0))]
    table.to_csv(csv, index=False)
    assert set(complete(csv).seed) == {0}
    # Steps are the configured ones: neither runs that all stopped halfway nor a longer regime's pass.
    for unfinished in (table[table.step < 8], table.assign(regime="sparse")):
        unfinished.to_csv(csv, index=False)
        with pytest.raises(ValueError, match="no complete training run yet"):
            complete(csv)


def test_the_best_learning_rate_of_a_seed_is_chosen_by_the_others():
    rises = {
        ("exact", 1.0): [0.8, 0.0, 0.1],
        ("exact", 2.0): [0.0, 0.2, 0.1],
        ("jagg", 1.0): [0.2] * 3,
        ("jagg", 2.0): [0.4] * 3,
        ("subset", 1.0): [0.3] * 3,
    }
    outcomes = runs(fake(rises))
    best = best_factors(outcomes)  # seed 0 is why factor 1 looks best, so it alone is not judged at it
    assert best.to_dict("list") == {"exact": [2.0, 1.0, 1.0], "jagg": [2.0] * 3}
    of_metric = outcomes[outcomes.metric == "reward"]
    assert at_factors(of_metric, best, "curve").exact.tolist() == pytest.approx([0, 0, 0.1 * 9 / 16])
    missing = best.assign(exact=5.0)
    assert at_factors(of_metric, missing, "curve").exact.isna().all()


def test_arms_are_compared_where_most_of_them_are():
    many = fake({("exact", 1.0): [0.1], ("exact", 3.0): [0.1], ("jagg", 3.0): [0.1]})
    assert main_rate(many) == 3
    assert main_rate(fake({("exact", 9.0): [0.1] * 3, ("exact", 1.0): [0.1]})) == 1
    assert main_rate(fake({("exact", 9.0): [0.1], ("exact", 3.0): [0.1] * 2})) == 3
    both = pd.concat([many, fake({("exact", 1.0): [0.1]}, "paper-eta")])
    assert at_main_rate(both).groupby("regime").lr_factor.unique().to_dict() == {
        "comfortable": [3],
        "paper-eta": [1],
    }


def test_seconds_are_at_the_pace_of_exact_whatever_machine_a_run_had(tmp_path):
    csv = write_tables(fake({("exact", 1.0): [0.8, 0.8, 0.8], ("jagg", 1.0): [0.4]}), tmp_path)
    timings = read(csv.with_name("convergence-timings.csv"))
    timings.loc[timings.arm == "jagg", "update"] = 0.1  # what it saves
    slow = (timings.arm == "jagg") | (timings.seed == 2)
    timings.loc[slow, list(PHASES)] *= 3
    timings.to_csv(csv.with_name("convergence-timings.csv"), index=False)
    at_end = spent(csv).groupby(["arm", "seed"])["seconds"].max()
    assert at_end["exact"].tolist() == pytest.approx([8.0, 8.0, 8.0])
    assert at_end["jagg", 0] == pytest.approx(8 * 0.9)
