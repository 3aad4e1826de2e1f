"""Velocities of an earlier policy: refused, recomputed or corrected, by the estimator's definition."""

from __future__ import annotations

import pytest
import torch
from core_problems import Problem, relative
from gradient_cases import CANNOT_CORRECT, SCHEMES, TOLERANCE, run

from repro.core.gradient import RolloutVelocities
from repro.core.schemes.scheme import exact


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
