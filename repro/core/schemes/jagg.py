"""The paper's schemes: two anchors a group, at its ends, and the readings of its ablation.

In a group of W steps the first and the last are backpropagated. JAGG gives each step's upstream gradient to
both, as the step lies between them in time (method, step 3); the ablation's readings do not interpolate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from repro.core.schemes.groups import as_groups
from repro.core.schemes.scheme import TOLERANCE, Scheme, Times, compose, exact

__all__ = ["Reading", "Weighting", "endpoints_only", "jagg", "routed"]

Rows = Callable[[Tensor], Tensor]
Weighting = Literal["time", "index"]
Reading = Literal["own", "sum", "half", "nearest"]


def _from_endpoints(name: str, times: Times, groups: int | Sequence[range], rows: Rows) -> Scheme:
    """Anchors at the ends of every group; `rows` maps a group's times (W,) to its block of Φ (W, 2)."""
    times = torch.as_tensor(times, dtype=torch.float64)
    parts = []
    for g in as_groups(len(times), groups):
        t = times[g.start : g.stop]
        parts.append(exact(t) if len(t) == 1 else Scheme(name, t, (0, len(t) - 1), rows(t)))
    return compose(*parts, name=name)


def _time_fraction(t: Tensor) -> Tensor:
    """α_j = (t_0 - t_j) / (t_0 - t_{W-1}), step 3 of the method."""
    return (t[0] - t) / (t[0] - t[-1])


def _split(share: Tensor) -> Tensor:
    """Rows (1 - share, share): what the first and the last step of a group receive of each step."""
    return torch.stack([1 - share, share], dim=1)


def jagg(times: Times, groups: int | Sequence[range], weighting: Weighting = "time") -> Scheme:
    """JAGG: two backwards a group, at its ends; the steps between are interpolated. Rows (1 - α_j, α_j).

    Args:
        times: (n,), strictly decreasing.
        groups: the groups, or W for equal groups of W steps. W = 1 and W = 2 are exact.
        weighting: ``time``, α_j = (t_0 - t_j)/(t_0 - t_{W-1}) (reported); ``index``, α_j = j/(W - 1) (early
            code).
    """
    weightings: dict[str, Rows] = {
        "time": lambda t: _split(_time_fraction(t)),
        "index": lambda t: _split(torch.linspace(0, 1, len(t), dtype=torch.float64)),
    }
    if weighting not in weightings:
        raise ValueError(f"weighting must be 'time' or 'index', got {weighting!r}")
    return _from_endpoints(f"jagg-{weighting}", times, groups, weightings[weighting])


def endpoints_only(times: Times, groups: int | Sequence[range], reading: Reading = "own") -> Scheme:
    """The paper's ablation: backwards at a group's ends, no interpolation. Its wording has four readings.

    Args:
        times: (n,), strictly decreasing.
        groups: the groups, or W for equal groups of W steps.
        reading: ``own``, each endpoint keeps its own s, middles are dropped; ``sum``, each endpoint gets the
            group's whole Σ_j s_j; ``half``, middles go half to each endpoint; ``nearest``, middles go to the
            endpoint nearer in time, the first when halfway.
    """

    readings: dict[str, Rows] = {
        "own": lambda t: torch.eye(len(t), dtype=torch.float64)[:, [0, -1]],
        "sum": lambda t: torch.ones(len(t), 2, dtype=torch.float64),
        "half": lambda t: _split(torch.tensor([0.0, *[0.5] * (len(t) - 2), 1.0], dtype=torch.float64)),
        "nearest": lambda t: _split((_time_fraction(t) > 0.5 + TOLERANCE).double()),
    }
    if reading not in readings:
        raise ValueError(f"reading must be one of {', '.join(readings)}, got {reading!r}")
    return _from_endpoints(f"endpoints-{reading}", times, groups, readings[reading])


def routed(
    times: Times, groups: int | Sequence[range], jagg_frac: float, weighting: Weighting = "time"
) -> Scheme:
    """JAGG on the first (noisiest) fraction of the groups, exact on the rest; reported 0.6 for text-to-image.

    Whole groups are routed: jagg_frac times their number, rounded to the nearest integer, halves up.

    Raises:
        ValueError: if jagg_frac lies outside [0, 1].
    """
    if not 0 <= jagg_frac <= 1:
        raise ValueError(f"jagg_frac is a fraction of the groups in [0, 1], got {jagg_frac}")
    times = torch.as_tensor(times, dtype=torch.float64)
    groups = as_groups(len(times), groups)
    # The tolerance keeps a half a half: 0.35 * 10 is 3.5 on paper, whatever it is in binary.
    n_jagg = math.floor(jagg_frac * len(groups) + 0.5 + TOLERANCE)
    cut = groups[n_jagg].start if n_jagg < len(groups) else len(times)
    parts = [jagg(times[:cut], groups[:n_jagg], weighting)] if n_jagg else []
    parts += [exact(times[cut:])] if cut < len(times) else []
    return compose(*parts, name=f"routed-{jagg_frac:g}" + ("" if weighting == "time" else f"-{weighting}"))
