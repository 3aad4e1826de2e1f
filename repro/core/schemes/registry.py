"""Schemes by name: the one place where a name that a user types becomes anchors and weights.

| name | scheme |
|---|---|
| ``exact`` | a backward at every trained step |
| ``jagg``, ``jagg-index`` | the paper's, t-weighted; with the early code's index weights |
| ``routed`` | jagg on the first ``jagg_frac`` of the groups, exact on the rest |
| ``endpoints-own``, ``-sum``, ``-half``, ``-nearest`` | the readings of the paper's ablation |
| ``subset`` | exact on ``subset_steps`` random steps, the rival at equal cost (ours) |

Adding a scheme is a name, a label and a line in `build`; nothing else in this suite asks which one is
running. Names and labels can be had without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from repro.core.schemes.scheme import Scheme

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
LABELS: dict[SchemeName, str] = {
    "exact": "exact",
    "jagg": "JAGG",
    "jagg-index": "JAGG, index weights",
    "routed": "JAGG, routed",
    "endpoints-own": "endpoints: own s",
    "endpoints-sum": "endpoints: whole sum",
    "endpoints-half": "endpoints: half and half",
    "endpoints-nearest": "endpoints: nearest",
    "subset": "exact on fewer steps",
}
"""For figures and tables."""


def build(
    name: SchemeName,
    times: Tensor,
    group_size: int,
    *,
    jagg_frac: float = 0.6,
    subset_steps: int = 0,
) -> Scheme:
    """The scheme called `name` over the trained steps' `times` (n,), in groups of `group_size` steps.

    Args:
        name: see the module.
        times: (n,), strictly decreasing.
        group_size: the paper's W.
        jagg_frac: for ``routed``.
        subset_steps: for ``subset``: the first ones, where a random subset's size and price are asked for;
            training draws one for every image (`repro.training.recipe.Recipe.trained_steps`).

    Raises:
        ValueError: an unknown name, or values that the scheme's builder refuses.
    """
    from repro.core.schemes.jagg import endpoints_only, jagg, routed
    from repro.core.schemes.scheme import exact, step_subset

    builders: dict[str, Callable[[], Scheme]] = {
        "exact": lambda: exact(times),
        "jagg": lambda: jagg(times, group_size),
        "jagg-index": lambda: jagg(times, group_size, "index"),
        "routed": lambda: routed(times, group_size, jagg_frac),
        "endpoints-own": lambda: endpoints_only(times, group_size, "own"),
        "endpoints-sum": lambda: endpoints_only(times, group_size, "sum"),
        "endpoints-half": lambda: endpoints_only(times, group_size, "half"),
        "endpoints-nearest": lambda: endpoints_only(times, group_size, "nearest"),
        "subset": lambda: step_subset(times, range(subset_steps)),
    }
    if name not in builders:
        raise ValueError(f"there is no scheme {name!r}, expected one of {', '.join(LABELS)}")
    return builders[name]()
