"""The cells of the convergence table: arms, regimes and learning rates, planned seed by seed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.convergence.arms import ARMS, REGIMES, Cell, arms_of, plan_cells
from repro.training.recipe import dance_grpo, preset


@pytest.mark.parametrize("algorithm", ["dance_grpo", "flow_grpo_fast"])
@pytest.mark.parametrize("regime", REGIMES)
def test_every_arm_is_valid_in_every_setting_or_says_why_not(algorithm, regime):
    base = preset(algorithm, bundled=True)
    for arm in arms_of(algorithm):
        if (regime, arm) == ("off-policy-corrected", "endpoints-sum"):
            with pytest.raises(ValueError, match="endpoints-sum: scheme .* cannot correct"):
                Cell(regime, arm, 1.0, 0).recipe(base)
        else:
            Cell(regime, arm, 1.0, 0).recipe(base)


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
    planned = plan_cells(("comfortable",), ("exact", "routed"), (1.0, 2.0), 5, 3, 1)
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
        Cell(regime, "exact", factor, 0).recipe(base).learning_rate
        for regime, factor in (("comfortable", 1.0), ("comfortable", 0.5), ("sparse", 0.5))
    )
    assert comfortable == base.learning_rate and half == base.learning_rate / 2
    assert sparse == pytest.approx(0.5 * 2 * base.learning_rate), "its steps are twice as large"
