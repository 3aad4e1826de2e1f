"""accumulate_gradient against plain autograd and against the estimator's definition, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from core_problems import Problem, relative
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from repro.cost import CostModel
from repro.gradient import RolloutVelocities, Surrogate, accumulate_gradient, upstream_gradient
from repro.scheme import (
    Scheme,
    compose,
    endpoints_only,
    exact,
    jagg,
    routed,
    step_subset,
)

TOLERANCE = 1e-10


def dense(times: torch.Tensor) -> Scheme:
    """Three knots over the whole trajectory with every weight non-zero: no anchor keeps its own s."""
    g = torch.Generator().manual_seed(3)
    return Scheme("dense", times, (0, 3, 7), torch.rand(8, 3, generator=g).double() + 0.1)


def hats(times: torch.Tensor) -> Scheme:
    """Shared knots 0, 3, 7: piecewise linear, so that rows reach across chunks of anchors."""
    weights = torch.zeros(8, 3, dtype=torch.float64)
    for left, (a, b) in enumerate([(0, 3), (3, 7)]):
        weights[a : b + 1, left : left + 2] = jagg(times[a : b + 1], [range(b + 1 - a)]).weights
    return Scheme("hats", times, (0, 3, 7), weights)


def swapped(times: torch.Tensor) -> Scheme:
    """Each end of a group of 8 gets what the other should: an anchor that does not concern itself."""
    straight = jagg(times, 8)
    return Scheme("swapped", times, straight.anchors, straight.weights.flip(1))


def per_sample(times: torch.Tensor) -> Scheme:
    g = torch.Generator().manual_seed(4)
    weights = torch.rand(4, 2, 5, generator=g).double()
    weights[1, 0, 2] = 0.0
    weights[1:3, 1] = 1 - weights[1:3, 0]  # middles interpolate, each sample in its own way
    return compose(Scheme("own", times[:4], (0, 3), weights), jagg(times[4:], 4))


SCHEMES = {
    "exact": exact,
    "jagg": lambda t: jagg(t, 4),
    "jagg-index": lambda t: jagg(t, 4, "index"),
    "jagg-8": lambda t: jagg(t, 8),
    "uneven": lambda t: jagg(t, [range(0, 3), range(3, 4), range(4, 8)]),
    "own": lambda t: endpoints_only(t, 4, "own"),
    "sum": lambda t: endpoints_only(t, 4, "sum"),
    "half": lambda t: endpoints_only(t, 4, "half"),
    "nearest": lambda t: endpoints_only(t, 4, "nearest"),
    "routed": lambda t: routed(t, 4, 0.5),
    "subset": lambda t: step_subset(t, [1, 4, 6], rescale=True),
    "hats": hats,
    "dense": dense,
    "swapped": swapped,
    "per-sample": per_sample,
}
CANNOT_CORRECT = {"sum", "dense"}


def run(problem: Problem, scheme: Scheme, **options):
    return accumulate_gradient(scheme, problem.velocity, problem.surrogate, problem.latents, **options)


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


# ------------------------------------------------------------------------------------------- stale velocities


def stale_problem() -> tuple[Problem, torch.Tensor]:
    """A problem whose weights moved after the rollout, and the velocities from before."""
    problem = Problem()
    old = problem.rollout_velocities()
    with torch.no_grad():
        for p in problem.parameters:
            p += 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())).double()
    assert relative(problem.rollout_velocities(), old) > 0.01
    return problem, old


def test_stale_rollout_is_refused_unless_told_how():
    problem, old = stale_problem()
    with pytest.raises(
        ValueError, match="stale .policy version 3, now 4.*stale='recompute' or stale='correct'"
    ):
        run(problem, exact(problem.times), rollout=RolloutVelocities(old, 3), policy_version=4)
    with pytest.raises(ValueError, match="policy_version"):
        run(problem, exact(problem.times), rollout=RolloutVelocities(old, 3))
    assert problem.forwards == 0 and all(p.grad is None for p in problem.parameters)


@pytest.mark.parametrize("name", sorted(set(SCHEMES) - CANNOT_CORRECT))
def test_correct_moves_velocities_by_the_anchors_change(name):
    problem, old = stale_problem()
    scheme = SCHEMES[name](problem.times)
    new = problem.rollout_velocities()
    anchors = list(scheme.anchors)
    weights = scheme.weights.reshape(8, len(anchors), -1).expand(-1, -1, problem.batch).clone()
    # An anchor's velocity is known, whatever its row says.
    weights[anchors] = torch.eye(len(anchors)).double()[:, :, None]
    corrected = old + torch.einsum("jkb,kbd->jbd", weights, new[anchors] - old[anchors])
    expected = problem.estimate(scheme, corrected)
    if len(anchors) < len(scheme.needed_steps):
        assert relative(problem.estimate(scheme), expected) > 1e-6  # differs from recomputing,
        assert relative(problem.estimate(scheme, old), expected) > 1e-3  # and from using the cache as it is
    for anchor_chunk in (1, 2, 3, 100):
        run(
            problem,
            scheme,
            rollout=RolloutVelocities(old, 0),
            policy_version=1,
            stale="correct",
            anchor_chunk=anchor_chunk,
        )
        assert relative(problem.take_grad(), expected) < TOLERANCE


@pytest.mark.parametrize("name", ["sum", "dense"])
def test_correct_is_refused_where_rows_do_not_interpolate(name):
    problem, old = stale_problem()
    with pytest.raises(ValueError, match="do not sum to 1"):
        run(
            problem,
            SCHEMES[name](problem.times),
            rollout=RolloutVelocities(old, 0),
            policy_version=1,
            stale="correct",
        )


# ---------------------------------------------------------------------------------------------- the objective


def test_clip_gates_upstream_gradients_as_in_the_exact_loss():
    problem = Problem()
    v = problem.velocity(range(8), problem.latents)
    v.retain_grad()
    result = problem.surrogate(range(8), v)
    result.loss.sum().backward()
    _, s = upstream_gradient(problem.surrogate, range(8), v)
    torch.testing.assert_close(s, v.grad, rtol=1e-12, atol=0)
    assert 0 < int(result.clipped.sum()) < result.clipped.numel()
    assert bool((s[result.clipped] == 0).all()) and bool((s[~result.clipped] != 0).all())


def test_a_clipped_middle_step_adds_nothing_to_either_anchor():
    """Clip every sample of step 1 away: JAGG's estimate is that of the same scheme with the row erased."""
    problem = Problem()
    problem.old_log_probs[1] -= torch.sign(
        problem.advantages
    )  # ratio far out on the side that the clip stops
    scheme = jagg(problem.times, 4)
    erased = scheme.weights.clone()
    erased[1] = 0.0
    expected = problem.estimate(Scheme("erased", scheme.times, scheme.anchors, erased))
    run(problem, scheme)
    assert relative(problem.take_grad(), expected) < TOLERANCE


def test_zero_advantages_give_zero_gradient():
    problem = Problem()
    problem.advantages.zero_()
    report = run(problem, jagg(problem.times, 4))
    assert bool((problem.take_grad() == 0).all()) and report.loss == 0


def test_bfloat16_velocity_gets_float32_upstream():
    problem = Problem(dtype=torch.bfloat16)
    scheme = jagg(problem.times, 4)
    seen = []

    def surrogate(steps, v):
        seen.append(v.dtype)
        return problem.surrogate(steps, v)

    upstreams = []

    def velocity(steps, latents):
        v = problem.velocity(steps, latents)
        if v.requires_grad:
            v.register_hook(lambda grad: upstreams.append(grad.dtype))
        return v

    accumulate_gradient(scheme, velocity, surrogate, problem.latents.float().double())
    assert set(seen) == {torch.float32} and set(upstreams) == {torch.bfloat16}
    _, s = upstream_gradient(surrogate, [0], problem.rollout_velocities()[:1])
    assert s.dtype == torch.float32
    low = problem.take_grad()
    assert relative(low, Problem().estimate(scheme)) < 0.05


def test_surrogate_without_ratio_reports_nan():
    problem = Problem()
    report = accumulate_gradient(
        exact(problem.times),
        problem.velocity,
        lambda steps, v: Surrogate((v**2).sum(dim=(1, 2))),
        problem.latents,
    )
    assert math.isnan(report.ratio_mean) and math.isnan(report.ratio_max_deviation)
    assert math.isnan(report.clip_fraction) and report.loss > 0


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
