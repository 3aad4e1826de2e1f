"""The cost table and arithmetic of the paper notes. That counts are those really made: test_gradient.py."""

from __future__ import annotations

import pytest
from core_problems import shifted_times
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.cost import CostModel, Counts, reduction, speedup
from repro.core.plan import plan
from repro.core.schemes.jagg import endpoints_only, jagg, routed
from repro.core.schemes.scheme import exact, step_subset

CHECKPOINTED, PLAIN = CostModel(backward=2, recompute=1), CostModel(backward=2, recompute=0)
TIMES = shifted_times(20)


def test_table_of_one_group_of_four():
    times = TIMES[:4]
    for model, exactly, reported, early_code in ((CHECKPOINTED, 16, 10, 12), (PLAIN, 12, 8, 10)):
        assert model.update_cost(exact(times)) == exactly
        assert model.update_cost(jagg(times, 4)) == reported
        # The early code forwards all W without gradient and the two ends again.
        recomputes = 2 if model.recompute else 0
        assert model.price(Counts(forwards=4 + 2, recomputes=recomputes, backwards=2)) == early_code


@settings(max_examples=50)
@given(
    st.integers(2, 12),
    st.integers(1, 4),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from([0.0, 1.0]),
    st.integers(1, 5),
)
def test_table_for_any_group_size(group_size, n_groups, b, c, anchor_chunk):
    times = shifted_times(group_size * n_groups)
    model = CostModel(backward=b, recompute=c)
    w = group_size
    exactly = model.update_cost(exact(times), anchor_chunk=anchor_chunk)
    assert exactly == n_groups * (w + c * w + b * w)
    aggregated = jagg(times, group_size)
    assert model.update_cost(aggregated, anchor_chunk=anchor_chunk) == n_groups * (w + 2 * c + 2 * b)
    # With the rollout's velocities only the anchors are forwarded.
    assert model.update_cost(aggregated, "rollout", anchor_chunk) == n_groups * (2 + 2 * c + 2 * b)
    assert model.update_cost(exact(times), "rollout", anchor_chunk) == exactly


def test_dancegrpo_step():
    baseline, mixed = exact(TIMES), routed(TIMES, 4, 0.6)
    fewer_steps = step_subset(TIMES, range(12))
    assert CHECKPOINTED.step_cost(21, baseline) == 101
    assert CHECKPOINTED.step_cost(21, mixed) == 83
    assert reduction(101, 83) == pytest.approx(0.178, abs=5e-4)
    assert speedup(101, 83) == pytest.approx(1.217, abs=5e-4)
    assert PLAIN.step_cost(21, baseline) == 81
    assert PLAIN.step_cost(21, mixed) == 69
    assert reduction(81, 69) == pytest.approx(0.148, abs=5e-4)
    # DanceGRPO's own timestep_fraction 0.6 with exact gradients: cheaper still.
    assert CHECKPOINTED.step_cost(21, fewer_steps) == 69


def test_flow_grpo_fast_update():
    for model, exactly, aggregated, saved in ((CHECKPOINTED, 16, 10, 0.375), (PLAIN, 12, 8, 1 / 3)):
        assert model.update_cost(exact(TIMES[:4])) == exactly
        assert model.update_cost(jagg(TIMES[:4], 4)) == aggregated
        assert reduction(exactly, aggregated) == pytest.approx(saved)


def test_guidance_doubles_everything_and_kl_adds_a_forward_per_trained_step():
    scheme = jagg(TIMES, 4)
    plain = CHECKPOINTED.step_cost(21, scheme)
    assert CostModel(2, 1, guidance=True).step_cost(21, scheme) == 2 * plain
    assert CostModel(2, 1, kl=True).step_cost(21, scheme) == plain + 20
    assert CostModel(2, 1, guidance=True, kl=True).step_cost(21, scheme) == 2 * (plain + 20)
    ends = endpoints_only(TIMES, 4, "own")
    assert CostModel(kl=True).update_cost(ends) == CostModel().update_cost(ends) + 10


def test_dropping_middles_saves_their_forwards_too():
    assert PLAIN.update_cost(endpoints_only(TIMES, 4, "own")) == 10 + 20
    assert PLAIN.update_cost(endpoints_only(TIMES, 4, "half")) == PLAIN.update_cost(jagg(TIMES, 4)) == 20 + 20
    # Ends that need each other's s wait for no chunk of one: forwarded ahead.
    whole = endpoints_only(TIMES, 4, "sum")
    assert PLAIN.counts(whole, anchor_chunk=2).forwards == 20
    assert PLAIN.counts(whole, anchor_chunk=1).forwards == 30


def test_recomputes_are_counted_only_with_checkpointing():
    assert CHECKPOINTED.counts(jagg(TIMES, 4)) == Counts(20, 10, 10)
    assert PLAIN.counts(jagg(TIMES, 4)) == Counts(20, 0, 10)


def test_plan_of_jagg():
    work = plan(jagg(TIMES[:8], 4), "recompute", anchor_chunk=2)
    assert work.untracked == work.early == (1, 2, 5, 6)
    assert work.chunks == ((0, 1), (2, 3)) and work.late == ((0, 3), (4, 7))
    assert plan(jagg(TIMES[:8], 4), "correct", 2).late == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert plan(jagg(TIMES[:8], 4), "rollout", 2).early == tuple(range(8))


def test_invalid_requests():
    with pytest.raises(ValueError, match="negative"):
        CostModel(backward=-1)
    with pytest.raises(ValueError, match="'rollout', 'recompute' or 'correct'"):
        PLAIN.counts(exact(TIMES), "cache")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pass 1 or more"):
        PLAIN.counts(exact(TIMES), anchor_chunk=0)
