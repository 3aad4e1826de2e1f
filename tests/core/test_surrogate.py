"""The objective's part in the gradient: what is clipped, zero or of low precision, and what is reported."""

from __future__ import annotations

import math

import torch
from core_problems import Problem, relative
from gradient_cases import TOLERANCE, run

from repro.core.gradient import Surrogate, accumulate_gradient, upstream_gradient
from repro.core.schemes.jagg import jagg
from repro.core.schemes.scheme import Scheme, exact


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
