"""The runs of the convergence table: arms, regimes and learning rates, planned seed by seed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.convergence import config as convergence
from experiments.convergence.arms import ARMS, REGIMES, Run, arms_of, plan_runs
from experiments.convergence.plans import PLANS
from repro.errors import InputError
from repro.provenance import NOT_SETTINGS
from repro.results import provenance_path, read
from repro.training.recipe import dance_grpo, preset


@pytest.mark.parametrize("algorithm", ["dance_grpo", "flow_grpo_fast"])
@pytest.mark.parametrize("regime", REGIMES)
def test_every_arm_is_valid_in_every_setting_or_says_why_not(algorithm, regime):
    base = preset(algorithm, bundled=True)
    for arm in arms_of(algorithm):
        if (regime, arm) == ("off-policy-corrected", "endpoints-sum"):
            with pytest.raises(ValueError, match="endpoints-sum: scheme .* cannot correct"):
                Run(regime, arm, 1.0, 0).recipe(base)
        else:
            Run(regime, arm, 1.0, 0).recipe(base)


def test_arms_differ_in_the_update_alone_but_for_the_window():
    base = dance_grpo(bundled=True)
    update = {"scheme", "subset_steps", "jagg_frac"}
    for name, arm in ARMS.items():
        recipe = arm.change(base)
        changed = {f for f in vars(base) if getattr(recipe, f) != getattr(base, f)}
        assert changed <= (update if name != "window" else {"window", "window_range"}), name
    assert arms_of("flow_grpo_fast") == tuple(a for a, arm in ARMS.items() if not arm.whole)


def test_the_subset_costs_what_jagg_does():
    base = dance_grpo(bundled=True)
    jagg, subset = (ARMS[name].change(base).update_cost() for name in ("jagg", "subset"))
    assert subset == jagg < ARMS["exact"].change(base).update_cost()
    paper, steps = (replace(base, velocities="recompute"), ARMS["subset-paper"].change(base).subset_steps)
    # Each of JAGG's 12 forwards and, of 6 anchors, 2 more (b = 2) buys 3 of an exact step.
    assert 3 * steps == ARMS["jagg"].change(paper).update_cost() == 12 + 6 * 2
    assert ARMS["timestep-fraction"].change(base).subset_steps == 7  # 0.6 of 12 steps


def test_cells_come_seed_by_seed_and_claims_get_more_seeds():
    planned = plan_runs(("comfortable",), ("exact", "routed"), (1.0, 2.0), 5, 3, 1)
    assert [(c.arm, c.lr_factor, c.seed) for c in planned] == [
        ("exact", 1.0, 5),
        ("routed", 1.0, 5),
        ("exact", 2.0, 5),
        ("routed", 2.0, 5),
        ("exact", 1.0, 6),
        ("exact", 2.0, 6),
        ("exact", 1.0, 7),
        ("exact", 2.0, 7),
    ]


def test_learning_rate_factors_multiply_the_settings():
    base = dance_grpo(bundled=True)
    comfortable, half, sparse = (
        Run(regime, "exact", factor, 0).recipe(base).learning_rate
        for regime, factor in (("comfortable", 1.0), ("comfortable", 0.5), ("sparse", 0.5))
    )
    assert comfortable == base.learning_rate and half == base.learning_rate / 2
    assert sparse == pytest.approx(0.5 * 2 * base.learning_rate), "its steps are twice as large"


RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.mark.parametrize(("plan", "model", "algorithm"), PLANS, ids=lambda part: part)
def test_the_plans_are_what_the_committed_tables_hold(plan, model, algorithm):
    """Their runs, no more and no fewer, under the very settings: `repro run` alone would train nothing."""
    config = convergence.of(model, algorithm, plan)
    config = replace(config, out=RESULTS / ("" if plan == "table" else plan))
    csv = config.folder / "convergence.csv"
    table = read(csv)
    there = {Run(*run) for run in table[list(Run._fields)].drop_duplicates().itertuples(index=False)}
    assert set(convergence.planned(config)) == there
    made = json.loads((provenance_path(csv)).read_text())["config"]
    asked = convergence.identity(convergence.settled(config))
    assert {name: value for name, value in asked.items() if name not in NOT_SETTINGS} == made
    assert convergence.outline(config).endswith(f"{len(there)} training runs done, 0 left")


def test_options_replace_the_plan_by_one_of_its_runs():
    config = replace(convergence.of("tiny-flux", "dance_grpo"), arms=("exact",), seeds=2)
    assert [tuple(run) for run in convergence.planned(config)] == [
        ("comfortable", "exact", 1.0, 0),
        ("comfortable", "exact", 1.0, 1),
    ]
    quick = convergence.planned(replace(convergence.of("tiny-flux", "dance_grpo"), quick=True))
    assert {run.seed for run in quick} == {0, 1} and {run.regime for run in quick} == {"comfortable"}
    with pytest.raises(InputError, match="no plan sweep/longer of tiny-flux .*--model tiny-qwen"):
        convergence.of("tiny-flux", "dance_grpo", "sweep/longer")


def test_presets_follow_the_words_of_the_command_line():
    words = ["--quick", "--algorithm=flow_grpo_fast", "--model", "tiny-qwen-image"]
    config = convergence.default(words)
    assert (config.algorithm, config.model, config.steps) == ("flow_grpo_fast", "tiny-qwen-image", 48)
    assert config.recipe == preset("flow_grpo_fast", bundled=True)
    assert convergence.default([]).recipe == preset("dance_grpo", bundled=True)
