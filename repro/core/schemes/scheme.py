r"""Every method in this suite, written as the data it is: anchors and a matrix.

A trajectory has n trained steps with velocities v_j = v_θ(z_j, t_j), Jacobians J_j = ∂v_j/∂θ and upstream
gradients s_j = ∂L_j/∂v_j. The exact gradient is G = Σ_j J_jᵀ s_j, one transformer backward a step. A *scheme*
backpropagates only through k of the steps, the anchors a_1 < … < a_k, and estimates

    Ĝ = Σ_k J_{a_k}ᵀ · ( Σ_j Φ[j, k] s_j ),        i.e.  J_j ≈ Σ_k Φ[j, k] J_{a_k}.

So a method is a tuple of anchors and an (n, k) matrix Φ, or (n, k, B) where every sample has its own. Nothing
past the builders below knows which method is running. Two properties can be read off Φ alone:

* rows that sum to 1 reproduce a Jacobian that is constant along the trajectory;
* rows with Φ·t_anchors = t as well reproduce one that is affine in t, which is the premise of the paper's
  Theorem 1.

JAGG with t-weights has both; with index weights only the first, unless the times are equidistant; the
endpoints-only readings of the ablation fail one or the other (`repro.core.schemes.jagg`).

This module knows neither networks nor autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Scheme", "Times", "compose", "exact", "restrict", "step_subset"]

Times = Tensor | Sequence[float]

# Φ comes from a handful of float64 operations on numbers of order 1: anything beyond this is a difference.
TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class Scheme:
    """Which steps are backpropagated (anchors), and which upstream gradients each one receives (weights).

    Attributes:
        name: for tables and plots; nothing branches on it.
        times: (n,) float64, the network's time (sigma) at each trained step, strictly decreasing.
        anchors: k step indices, strictly increasing.
        weights: Φ, (n, k) or, with one matrix a sample, (n, k, B); float64.

    Raises:
        ValueError: if times do not strictly decrease, anchors do not strictly increase within the steps, or
            the shape of weights does not follow from them.
    """

    name: str
    times: Tensor
    anchors: tuple[int, ...]
    weights: Tensor

    def __post_init__(self) -> None:
        times = torch.as_tensor(self.times, dtype=torch.float64, device="cpu")
        weights = torch.as_tensor(self.weights, dtype=torch.float64, device="cpu")
        anchors = tuple(int(a) for a in self.anchors)
        if times.ndim != 1 or len(times) == 0 or not bool(times.isfinite().all()):
            raise ValueError(f"times must be a non-empty vector of finite numbers, got {times.tolist()}")
        if bool((times.diff() >= 0).any()):
            raise ValueError(
                f"times must strictly decrease (noise to data), got {times.tolist()}: sort or deduplicate"
            )
        if not anchors or any(b <= a for a, b in zip(anchors, anchors[1:], strict=False)):
            raise ValueError(
                f"anchors must be one or more strictly increasing steps, got {anchors}: sort, deduplicate"
            )
        if anchors[0] < 0 or anchors[-1] >= len(times):
            raise ValueError(
                f"anchors must lie in 0..{len(times) - 1}, got {anchors}: index the trained steps"
            )
        if weights.ndim not in (2, 3) or weights.shape[:2] != (len(times), len(anchors)):
            raise ValueError(
                f"weights must be (n, k) or (n, k, B) with n={len(times)}, k={len(anchors)}, "
                f"got {tuple(weights.shape)}"
            )
        if not bool(weights.isfinite().all()):
            raise ValueError("weights must be finite, got nan or inf: check the times and the rows you built")
        for field, value in (("times", times), ("anchors", anchors), ("weights", weights)):
            object.__setattr__(self, field, value)

    @property
    def n_steps(self) -> int:
        """n, the number of trained steps."""
        return len(self.times)

    @property
    def n_anchors(self) -> int:
        """k, the number of steps backpropagated."""
        return len(self.anchors)

    @property
    def per_sample(self) -> bool:
        """Whether every sample has a matrix of its own, weights (n, k, B)."""
        return self.weights.ndim == 3

    @property
    def reproduces_constants(self) -> bool:
        """Whether every row of Φ sums to 1."""
        return bool((self.weights.sum(dim=1) - 1).abs().max() < TOLERANCE)

    @property
    def reproduces_affine(self) -> bool:
        """Whether Φ takes any function affine in t from its values at the anchors to those at the steps."""
        anchor_times = self.times[list(self.anchors)]
        interpolated = torch.tensordot(self.weights, anchor_times, dims=([1], [0]))  # (n,) or (n, B)
        times = self.times if not self.per_sample else self.times[:, None]
        return self.reproduces_constants and bool((interpolated - times).abs().max() < TOLERANCE)

    @property
    def diagonal_anchor_block(self) -> bool:
        """Whether an anchor's own upstream gradient goes to that anchor alone."""
        block = self.weights[list(self.anchors)]
        diagonal = torch.eye(self.n_anchors, dtype=torch.bool)
        return bool((block[~diagonal] == 0).all())

    def support(self, step: int) -> tuple[int, ...]:
        """The columns of Φ that are non-zero in the row of `step`, for any sample."""
        row = self.weights[step].reshape(self.n_anchors, -1)
        return tuple((row != 0).any(dim=1).nonzero().flatten().tolist())

    @property
    def needed_steps(self) -> tuple[int, ...]:
        """The steps whose s_j is used at all: rows of Φ that are not all zero."""
        return tuple(j for j in range(self.n_steps) if self.support(j))

    def __repr__(self) -> str:
        matrix = self.weights.mean(dim=2) if self.per_sample else self.weights
        samples = f", mean of {self.weights.shape[2]} samples' weights" if self.per_sample else ""
        head = f"Scheme {self.name!r}: {self.n_steps} steps, {self.n_anchors} anchors (*){samples}"
        lines = [head, "  step       t  " + "".join(f"{f'a={a}':>8}" for a in self.anchors)]
        for j in range(self.n_steps):
            row = "".join(f"{w:8.3f}" if w else f"{'.':>8}" for w in matrix[j].tolist())
            lines.append(f"  {j:>4}{'*' if j in self.anchors else ' '} {float(self.times[j]):7.4f} {row}")
        return "\n".join(lines)


def exact(times: Times) -> Scheme:
    """Every step its own anchor: the ordinary gradient."""
    n = len(times)
    return Scheme("exact", torch.as_tensor(times), tuple(range(n)), torch.eye(n, dtype=torch.float64))


def compose(*schemes: Scheme, name: str | None = None) -> Scheme:
    """Schemes of consecutive stretches of a trajectory, as one scheme with a block-diagonal Φ.

    Shared and per-sample blocks mix: a shared block serves every sample.

    Args:
        schemes: in the order of the trajectory, so that the joined times strictly decrease.
        name: of the result; by default the names joined, repetitions dropped.
    """
    if not schemes:
        raise ValueError("compose needs at least one scheme, got none")
    samples = {s.weights.shape[2] for s in schemes if s.per_sample}
    if len(samples) > 1:
        raise ValueError(f"per-sample blocks must agree on the number of samples, got {sorted(samples)}")
    n, k = sum(s.n_steps for s in schemes), sum(s.n_anchors for s in schemes)
    weights = torch.zeros(n, k, *samples, dtype=torch.float64)
    anchors: list[int] = []
    row = 0
    for s in schemes:
        block = s.weights if s.per_sample or not samples else s.weights[:, :, None]
        weights[row : row + s.n_steps, len(anchors) : len(anchors) + s.n_anchors] = block
        anchors += [row + a for a in s.anchors]
        row += s.n_steps
    joined = name or "+".join(dict.fromkeys(s.name for s in schemes))
    return Scheme(joined, torch.cat([s.times for s in schemes]), tuple(anchors), weights)


def step_subset(times: Times, steps: Sequence[int], rescale: bool = False) -> Scheme:
    """Exact gradients on some of the steps, none on the others: the rival at equal compute (ours).

    DanceGRPO's timestep_fraction is a random subset; Flash-GRPO's is one step shared by a prompt's group.

    Args:
        times: (n,), strictly decreasing.
        steps: which steps to train, distinct, in any order.
        rescale: multiply by n/k, so that a uniformly random subset estimates the whole sum without bias.
    """
    anchors = tuple(sorted(int(j) for j in steps))
    n, k = len(times), len(anchors)
    if not anchors or len(set(anchors)) < k or anchors[0] < 0 or anchors[-1] >= n:
        raise ValueError(f"steps must be one or more distinct steps in 0..{n - 1}, got {tuple(steps)}")
    weights = torch.eye(n, dtype=torch.float64)[:, list(anchors)] * (n / k if rescale else 1.0)
    return Scheme(f"subset-{k}of{n}", torch.as_tensor(times), anchors, weights)


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
