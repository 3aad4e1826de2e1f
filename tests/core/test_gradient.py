"""accumulate_gradient against plain autograd and against the estimator's definition, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from core_problems import Problem, relative
from gradient_cases import CANNOT_CORRECT, SCHEMES, TOLERANCE, hats, per_sample, run
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from repro.core.cost import CostModel
from repro.core.gradient import RolloutVelocities, Surrogate, accumulate_gradient
from repro.core.schemes.jagg import endpoints_only, jagg, routed
from repro.core.schemes.scheme import Scheme, exact, step_subset


def test_exact_scheme_is_plain_autograd():
    problem = Problem()
    expected = problem.exact_gradient()
    report = run(problem, exact(problem.times))
    assert relative(problem.take_grad(), expected) < TOLERANCE
    result = problem.surrogate(range(8), problem.rollout_velocities())
    assert report.loss == pytest.approx(float(result.loss.sum()), rel=1e-12)
    assert report.ratio_mean == pytest.approx(float(result.ratio.mean()), rel=1e-12)
    assert report.ratio_max_deviation == pytest.approx(float((result.ratio - 1).abs().max()), rel=1e-12)
    assert report.clip_fraction == pytest.approx(float(result.clipped.double().mean()))
    assert 0.1 < report.clip_fraction < 0.9  # the objective's clip is at work


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("weighting", ["time", "index"])
def test_groups_of_one_and_two_are_exact(group_size, weighting):
    problem = Problem()
    expected = problem.exact_gradient()
    run(problem, jagg(problem.times, group_size, weighting))
    assert relative(problem.take_grad(), expected) < TOLERANCE


def test_jagg_is_an_approximation_on_a_nonlinear_network():
    problem = Problem()
    expected = problem.exact_gradient()
    run(problem, jagg(problem.times, 4))
    assert 1e-3 < relative(problem.take_grad(), expected) < 1


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("source", ["none", "fresh", "recompute"])
def test_every_scheme_is_its_definition_for_any_chunks(name, source):
    """Σ_k J_{a_k}ᵀ Σ_j Φ[j, k] s_j, whatever the source of velocities and the chunk sizes."""
    problem = Problem()
    scheme = SCHEMES[name](problem.times)
    expected = problem.estimate(scheme)
    stale_by = 1 if source == "recompute" else 0
    # What is stale must not matter when it is recomputed: poison it.
    cached = problem.rollout_velocities() * (torch.nan if stale_by else 1.0)
    options = (
        {}
        if source == "none"
        else {
            "rollout": RolloutVelocities(cached, policy_version=7 - stale_by),
            "policy_version": 7,
            "stale": "recompute",
        }
    )
    velocities = "rollout" if source == "fresh" else "recompute"
    for anchor_chunk, forward_chunk in [(1, None), (2, None), (2, 1), (3, 5), (100, 100)]:
        problem.reset_counts()
        report = run(problem, scheme, anchor_chunk=anchor_chunk, forward_chunk=forward_chunk, **options)
        made = (problem.forwards, problem.tracked, problem.backwards, problem.backward_calls)
        assert made == (
            report.counts.forwards,
            scheme.n_anchors,
            report.counts.backwards,
            report.backward_calls,
        )
        assert report.backward_calls == math.ceil(scheme.n_anchors / anchor_chunk)
        assert report.counts == CostModel().counts(scheme, velocities, anchor_chunk)
        assert relative(problem.take_grad(), expected) < TOLERANCE


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(SCHEMES)),
    st.sampled_from(["rollout", "recompute", "correct"]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
)
def test_counts_are_those_really_made_and_those_priced(
    name, velocities, anchor_chunk, forward_chunk, checkpointing
):
    assume(velocities != "correct" or name not in CANNOT_CORRECT)
    problem = Problem()
    scheme = SCHEMES[name](problem.times)
    problem.checkpointing = checkpointing
    version = {"rollout": 1, "recompute": 0, "correct": 0}[velocities]
    report = run(
        problem,
        scheme,
        rollout=RolloutVelocities(problem.rollout_velocities(), version),
        policy_version=1,
        stale=velocities if velocities != "rollout" else "refuse",
        anchor_chunk=anchor_chunk,
        forward_chunk=forward_chunk,
        checkpointing=checkpointing,
    )
    counts = report.counts
    assert (problem.forwards, problem.backwards, problem.backward_calls) == (
        counts.forwards,
        counts.backwards,
        report.backward_calls,
    )
    assert problem.network_calls == counts.forwards + counts.recomputes
    assert counts == CostModel(recompute=float(checkpointing)).counts(scheme, velocities, anchor_chunk)


def test_forwards_by_source_of_velocities():
    """n when recomputed, at any chunk size; k when the rollout's are fresh, or corrected within a chunk."""
    problem = Problem()
    count = CostModel().counts
    for scheme in (exact(problem.times), jagg(problem.times, 4), routed(problem.times, 4, 0.5)):
        for anchor_chunk in (1, 2, 3, 8):
            assert count(scheme, "recompute", anchor_chunk).forwards == 8
            assert count(scheme, "rollout", anchor_chunk).forwards == scheme.n_anchors
    assert count(jagg(problem.times, 4), "correct", 2).forwards == 4
    assert count(jagg(problem.times, 4), "correct", 1).forwards == 8  # middles need anchors of two chunks
    assert count(endpoints_only(problem.times, 4, "nearest"), "correct", 1).forwards == 4
    assert count(hats(problem.times), "correct", 2).forwards == 3 + 2  # steps 4..6 need anchors 3 and 7 ahead


@pytest.mark.parametrize(
    ("scheme", "needed"),
    [
        (endpoints_only(Problem().times, 4, "own"), {0, 3, 4, 7}),
        (step_subset(Problem().times, [2, 5]), {2, 5}),
    ],
)
def test_steps_with_zero_rows_are_never_forwarded(scheme, needed):
    problem = Problem()
    seen: list[int] = []

    def surrogate(steps, v):
        seen.extend(steps)
        return problem.surrogate(steps, v)

    accumulate_gradient(scheme, problem.velocity, surrogate, problem.latents)
    assert sorted(problem.forwarded) == sorted(seen) == sorted(needed)


def test_per_sample_weights_are_a_loop_over_samples():
    problem = Problem()
    scheme = per_sample(problem.times)
    run(problem, scheme)
    together = problem.take_grad()
    one_by_one = torch.zeros_like(together)
    for b in range(problem.batch):
        problem.samples = slice(b, b + 1)
        own = Scheme("b", scheme.times, scheme.anchors, scheme.weights[:, :, b])
        accumulate_gradient(own, problem.velocity, problem.surrogate, problem.latents[:, b : b + 1])
        one_by_one += problem.take_grad()
    assert relative(together, one_by_one) < TOLERANCE


def test_accumulates_into_existing_grad():
    problem = Problem()
    run(problem, jagg(problem.times, 4))
    once = problem.take_grad()
    for p in problem.parameters:
        p.grad = torch.ones_like(p)
    run(problem, jagg(problem.times, 4))
    assert relative(problem.take_grad(), once + 1) < TOLERANCE


def test_works_under_no_grad_and_leaves_latents_alone():
    problem = Problem()
    expected = problem.estimate(jagg(problem.times, 4))
    problem.latents.requires_grad_()
    with torch.no_grad():
        run(problem, jagg(problem.times, 4))
    assert problem.latents.grad is None
    assert relative(problem.take_grad(), expected) < TOLERANCE


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"latents": torch.zeros(7, 5, 3).double()}, "n=8 steps"),
        ({"latents": torch.zeros(8).double()}, "n=8 steps"),
        ({"velocity": lambda steps, z: torch.zeros(1, 5, 3)}, "shape of its latents"),
        ({"velocity": lambda steps, z: z.clone()}, "no graph"),
        ({"surrogate": lambda steps, v: Surrogate(v.sum())}, "one a step"),
        ({"stale": "ignore"}, "'refuse', 'recompute' or 'correct'"),
        ({"anchor_chunk": 0}, "pass 1 or more"),
        ({"forward_chunk": 0}, "pass 1 or more"),
        (
            {"rollout": RolloutVelocities(torch.zeros(9, 5, 3), 0), "policy_version": 0},
            "keep the trained steps",
        ),
        (
            {"scheme": Scheme("s", [1.0], (0,), torch.ones(1, 1, 4)), "latents": torch.zeros(1, 5, 3)},
            "4 samples",
        ),
    ],
)
def test_invalid_calls_say_what_to_change(change, says):
    problem = Problem()
    arguments = {
        "scheme": jagg(problem.times, 4),
        "velocity": problem.velocity,
        "surrogate": problem.surrogate,
        "latents": problem.latents,
    } | change
    with pytest.raises(ValueError, match=says):
        accumulate_gradient(**arguments)
