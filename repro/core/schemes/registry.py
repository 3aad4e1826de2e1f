"""Schemes by name: the one place where a name that a user types becomes anchors and weights.

| name | scheme |
|---|---|
| ``exact`` | a backward at every trained step |
| ``jagg``, ``jagg-index`` | the paper's, t-weighted; with the early code's index weights |
| ``routed`` | jagg on the first ``jagg_frac`` of the groups, exact on the rest |
| ``endpoints-own``, ``-sum``, ``-half``, ``-nearest`` | the readings of the paper's ablation |
| ``subset`` | exact on ``subset_steps`` random steps, the rival at equal cost (ours) |

Adding a scheme is one line in `build`; nothing else in this suite asks which one is running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from repro.core.schemes.jagg import endpoints_only, jagg, routed
from repro.core.schemes.scheme import Scheme, exact, step_subset

SchemeName: TypeAlias = Literal[
    "exact",
    "jagg",
    "jagg-index",
    "routed",
    "endpoints-own",
    "endpoints-sum",
    "endpoints-half",
    "endpoints-nearest",
    "subset",
]


def build(
    name: SchemeName,
    times: Tensor,
    group_size: int,
    *,
    jagg_frac: float = 0.6,
    subset_steps: int = 0,
    generator: torch.Generator | None = None,
) -> Scheme:
    """The scheme called `name` over the trained steps' `times` (n,), in groups of `group_size` steps.

    Args:
        name: see the module.
        times: (n,), strictly decreasing.
        group_size: the paper's W.
        jagg_frac: for ``routed``.
        subset_steps: for ``subset``; its gradient is multiplied by n / subset_steps, so that on average it is
            the exact one.
        generator: draws the subset.

    Raises:
        ValueError: an unknown name, or values that the scheme's builder refuses.
    """

    def subset() -> Scheme:
        order = torch.randperm(len(times), generator=generator)
        return step_subset(times, order[:subset_steps].tolist(), rescale=True)

    builders: dict[str, Callable[[], Scheme]] = {
        "exact": lambda: exact(times),
        "jagg": lambda: jagg(times, group_size),
        "jagg-index": lambda: jagg(times, group_size, "index"),
        "routed": lambda: routed(times, group_size, jagg_frac),
        "endpoints-own": lambda: endpoints_only(times, group_size, "own"),
        "endpoints-sum": lambda: endpoints_only(times, group_size, "sum"),
        "endpoints-half": lambda: endpoints_only(times, group_size, "half"),
        "endpoints-nearest": lambda: endpoints_only(times, group_size, "nearest"),
        "subset": subset,
    }
    if name not in builders:
        raise ValueError(f"there is no scheme {name!r}, expected one of {', '.join(get_args(SchemeName))}")
    return builders[name]()


def restrict(scheme: Scheme, steps: Sequence[int]) -> Scheme:
    """The scheme on some of its steps, for training a part of the groups.

    Args:
        scheme: whose rows at `steps` rest on anchors among `steps` alone, as whole groups do.
        steps: strictly increasing.

    Raises:
        ValueError: if a row needs an anchor outside `steps`.
    """
    kept = [k for k, a in enumerate(scheme.anchors) if a in steps]
    cut_off = [j for j in steps if not set(scheme.support(j)) <= set(kept)]
    if cut_off:
        raise ValueError(
            f"steps {cut_off} of {scheme.name!r} rest on anchors that were left out: choose whole groups"
        )
    anchors = tuple(list(steps).index(scheme.anchors[k]) for k in kept)
    return Scheme(scheme.name, scheme.times[list(steps)], anchors, scheme.weights[list(steps)][:, kept])
