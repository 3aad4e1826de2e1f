"""Cutting a trajectory's trained steps into consecutive groups, the unit the paper aggregates over.

The paper's groups hold equally many steps, W. Under a shifted noise schedule such groups differ in the span
of sigma they cover (shift 3, 20 of 21 steps, W = 4: 0.05 between the first group's ends, 0.24 between the
last's), so groups of equal span are offered beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def equal_span_groups(times: Tensor | Sequence[float], n_groups: int, min_size: int = 3) -> Groups:
    """Consecutive groups whose ends lie as equally far apart in sigma as whole steps allow.

    With shift 3, groups of equal step count get wider in sigma as the noise falls, so a trend over groups
    confounds noise level with span, which is what an interpolation has to bridge. These groups take the span
    out. Among all cuts into `n_groups` runs of `min_size` steps or more, the one with the least ratio of the
    largest to the smallest span, times[first] - times[last], is returned. Ours.

    Args:
        times: (n,), the trained steps' sigmas, strictly decreasing.
        n_groups: number of groups.
        min_size: least number of steps in a group, at least 2. A group without middles approximates nothing.

    Raises:
        ValueError: if times do not strictly decrease, or cannot be cut so.
    """
    values = [float(time) for time in times]
    n = len(values)
    if any(b >= a for a, b in zip(values, values[1:], strict=False)):
        raise ValueError(f"times must strictly decrease, got {values}: pass the trained steps' sigmas")
    if min_size < 2:
        raise ValueError(f"a group of one step spans nothing, got min_size={min_size}: pass 2 or more")
    if not 1 <= n_groups <= n // min_size:
        raise ValueError(
            f"cannot cut {n} steps into {n_groups} groups of {min_size} or more: choose "
            f"1..{n // min_size} groups"
        )
    spans = {(a, b): values[a] - values[b - 1] for a in range(n) for b in range(a + min_size, n + 1)}
    found: list[tuple[float, tuple[int, ...]]] = []
    for least in set(spans.values()):
        # best[i] = (least possible largest span, cuts) over the first i steps, no span below `least`.
        best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
        for _ in range(n_groups):
            longer: dict[int, tuple[float, tuple[int, ...]]] = {}
            for (a, b), span in spans.items():
                if a in best and span >= least:
                    candidate = (max(best[a][0], span), (*best[a][1], b))
                    longer[b] = min(longer.get(b, candidate), candidate)
            best = longer
        if n in best:
            found.append((best[n][0] / least, best[n][1]))
    cuts = min(found)[1]
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
