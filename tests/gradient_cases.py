"""Schemes of every kind for the gradient's tests, and the call that accumulates one's gradient."""

from __future__ import annotations

import torch
from core_problems import Problem

from repro.core.gradient import accumulate_gradient
from repro.core.schemes.jagg import endpoints_only, jagg, routed
from repro.core.schemes.scheme import Scheme, compose, exact, step_subset

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
