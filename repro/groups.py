"""Cutting a trajectory's trained steps into consecutive groups, the unit the paper aggregates over.

The paper's groups hold equally many steps, W. Under a shifted noise schedule such groups differ in the span
of sigma they cover (shift 3, 20 of 21 steps, W = 4: 0.05 between the first group's ends, 0.24 between the
last's), so groups of equal span are offered beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Groups = tuple[range, ...]


def equal_step_groups(n_steps: int, group_size: int) -> Groups:
    """Consecutive groups of `group_size` steps each, the paper's W.

    Raises:
        ValueError: if `group_size` is less than 1 or does not divide `n_steps`.
    """
    if group_size < 1:
        raise ValueError(f"a group holds at least one step, got W={group_size}: pass 1 or more")
    if n_steps < 1 or n_steps % group_size:
        raise ValueError(
            f"{n_steps} steps do not divide into groups of W={group_size}: train a multiple of {group_size} "
            f"steps, or choose another W"
        )
    return tuple(range(i, i + group_size) for i in range(0, n_steps, group_size))


def equal_span_groups(sigmas: Tensor | Sequence[float], n_groups: int) -> Groups:
    """Consecutive groups that cover spans of sigma as equal as whole steps allow.

    With shift 3, groups of equal step count get wider in sigma as the noise falls, so a trend over groups
    confounds noise level with span. These groups take the span out. Among all cuts into `n_groups` non-empty
    runs, the one with the least sum of squared spans (equivalently, least variance) is returned. Ours.

    Args:
        sigmas: (n + 1,), strictly decreasing: step j goes from sigmas[j] to sigmas[j + 1].
        n_groups: number of groups, 1..n.

    Raises:
        ValueError: if sigmas do not strictly decrease, or there are not 1..n groups.
    """
    edges = torch.as_tensor(sigmas, dtype=torch.float64).tolist()
    n = len(edges) - 1
    if any(b >= a for a, b in zip(edges, edges[1:], strict=False)):
        raise ValueError(
            f"sigmas must strictly decrease, got {edges}: pass the n steps' sigmas and the one after them"
        )
    if not 1 <= n_groups <= n:
        raise ValueError(f"cannot cut {n} steps into {n_groups} groups: choose 1..{n} groups")
    # best[i] = (least sum of squared spans, cuts) over the first i steps in the current number of groups.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
    for _ in range(n_groups):
        best = {
            i: min(
                (cost + (edges[h] - edges[i]) ** 2, (*cuts, i)) for h, (cost, cuts) in best.items() if h < i
            )
            for i in range(min(best) + 1, n + 1)
        }
    cuts = best[n][1]
    return tuple(range(a, b) for a, b in zip(cuts, cuts[1:], strict=False))


def as_groups(n_steps: int, groups: int | Sequence[range]) -> Groups:
    """Groups as given, checked to cut 0..n_steps - 1 in order; an int W stands for equal groups of W."""
    if isinstance(groups, int):
        return equal_step_groups(n_steps, groups)
    groups = tuple(groups)
    if [j for g in groups for j in g] != list(range(n_steps)) or not all(groups):
        raise ValueError(
            f"groups must be consecutive, non-empty and cover steps 0..{n_steps - 1}, got {groups}"
        )
    return groups
