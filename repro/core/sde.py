"""Noise schedules and transition kernels of flow-matching samplers.

Notation. sigma runs from 1 (pure noise) to 0 (data); z = (1 - sigma) x0 + sigma e with e ~ N(0, I); the
network predicts v = E[e - x0 | z], and dz/dsigma = v carries the marginals. A step goes down from sigma to
sigma', its length is h = sigma - sigma' > 0. From v follow the two ends and the score:

    x0 = z - sigma v,    e = z + (1 - sigma) v,    score = -(z - (1 - sigma) x0) / sigma^2 = -e / sigma.

Every kernel here is Gaussian with a mean that is linear in z and v:

    z' ~ N(a z + b v, std^2 I),    (a, b, std) functions of sigma and sigma' alone.

The SDE kernels add noise of rate g and pull back along the score so that the marginals stay those of the ODE:

    mean = z - h v + h (g^2 / 2) score,    std = g sqrt(h)
      so a = 1 - h g^2 / (2 sigma),    b = -h (1 + g^2 (1 - sigma) / (2 sigma)).

    Dance   g = eta, a constant                                            (DanceGRPO)
    Flow    g = eta sqrt(sigma / (1 - sigma)), 1 - sigma kept off zero     (Flow-GRPO)
    CPS     not an SDE step: the predicted ends are mixed afresh, z' = (1 - sigma') x0 + r e + std n with
            std = sigma' sin(eta pi / 2) and r^2 + std^2 = sigma'^2        (coefficients-preserving sampling)
    ODE     z' = z - h v, no noise                                         (Euler, as the stock pipelines)

Ours: Dance reaches the target's moments with an error of order h. So does Flow started below sigma = 1. From
sigma = 1 its first steps inject noise of order eta however short they are, and the error falls as h^(eta^2)
when eta < 1. CPS keeps the schedule's data and noise coefficients exactly, but in general not the marginal.

Coefficients are computed in float64, latents in at least float32, whatever the inputs' dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["CPS", "ODE", "Dance", "Flow", "Kernel", "Transition", "log_prob", "shifted_sigmas"]


def shifted_sigmas(num_steps: int, shift: float) -> Tensor:
    """The noise levels of `num_steps` sampling steps: x = 1, ..., 1/N, 0 evenly, then s x / (1 + (s - 1) x).

    Equal to diffusers' FlowMatchEulerDiscreteScheduler with a static shift; a pipeline with dynamic shifting
    by mu uses shift = exp(mu). The early code has shift 3.

    Returns:
        (num_steps + 1,) float64 on the CPU, strictly decreasing from 1 to 0.

    Raises:
        ValueError: if num_steps < 1 or shift is not above 0.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}, expected at least 1: ask for one sampling step or more")
    if not (shift > 0 and math.isfinite(shift)):
        raise ValueError(f"shift is {shift}, expected a finite number above 0: use 1 for an even schedule")
    x = torch.linspace(1.0, 0.0, num_steps + 1, dtype=torch.float64)
    return shift * x / (1 + (shift - 1) * x)


class Transition(NamedTuple):
    """The Gaussian N(mean, std^2 I) of the next latents: mean shaped like the latents, std like sigma."""

    mean: Tensor
    std: Tensor


class Coefficients(NamedTuple):
    """mean = a z + b v and std, each float64 on the CPU in the shape of sigma."""

    a: Tensor
    b: Tensor
    std: Tensor


class Kernel(Protocol):
    """What rollout and surrogate need of a sampler: the distribution of the next latents.

    sigma and sigma_next are floats, or tensors that broadcast with the latents, such as (m, 1, ..., 1).
    """

    def transition(
        self, latents: Tensor, velocity: Tensor, sigma: Tensor | float, sigma_next: Tensor | float
    ) -> Transition: ...


class _LinearKernel:
    """Shared by all kernels here: the mean is linear in latents and velocity."""

    def coefficients(self, sigma: Tensor | float, sigma_next: Tensor | float) -> Coefficients:
        """a, b and std of the step from sigma to sigma_next (the module's formulas)."""
        # On the CPU in float64: h is a small difference of numbers near 1; some accelerators lack float64.
        s, t = (torch.as_tensor(x, dtype=torch.float64, device="cpu") for x in (sigma, sigma_next))
        return self._coefficients(s, t)

    def _coefficients(self, sigma: Tensor, sigma_next: Tensor) -> Coefficients:
        raise NotImplementedError

    def transition(
        self, latents: Tensor, velocity: Tensor, sigma: Tensor | float, sigma_next: Tensor | float
    ) -> Transition:
        """The next latents' Gaussian, differentiable in `velocity`; dtype at least float32."""
        dtype = _at_least_float32(latents.dtype, velocity.dtype)
        a, b, std = (c.to(latents.device, dtype) for c in self.coefficients(sigma, sigma_next))
        return Transition(a * latents.to(dtype) + b * velocity.to(dtype), std)


@dataclass(frozen=True)
class Dance(_LinearKernel):
    """DanceGRPO's SDE: noise of constant rate eta, std = eta sqrt(sigma - sigma_next). Early code: 0.3."""

    eta: float

    def __post_init__(self) -> None:
        _check_eta(self.eta)

    def _coefficients(self, sigma: Tensor, sigma_next: Tensor) -> Coefficients:
        return _sde(torch.full_like(sigma, self.eta**2), sigma, sigma_next)


@dataclass(frozen=True)
class Flow(_LinearKernel):
    """Flow-GRPO's SDE: rate eta sqrt(sigma / (1 - sigma)).

    At sigma = 1 the denominator would vanish; there 1 - sigma_max stands in for it. sigma_max is the
    schedule's second sigma, which is the step's own sigma_next when left None.
    """

    eta: float
    sigma_max: float | None = None

    def __post_init__(self) -> None:
        _check_eta(self.eta)
        if self.sigma_max is not None and not 0 < self.sigma_max < 1:
            raise ValueError(
                f"sigma_max is {self.sigma_max}, expected 0 < sigma_max < 1: the second sigma, or None"
            )

    def _coefficients(self, sigma: Tensor, sigma_next: Tensor) -> Coefficients:
        stand_in = sigma_next if self.sigma_max is None else torch.full_like(sigma, self.sigma_max)
        rate2 = self.eta**2 * sigma / (1 - torch.where(sigma >= 1, stand_in, sigma))
        return _sde(rate2, sigma, sigma_next)


@dataclass(frozen=True)
class CPS(_LinearKernel):
    """Coefficients-preserving sampling: a share sin(eta pi / 2) of the next noise level is fresh noise.

    eta in [0, 1]: 0 is the ODE, 1 renews all the noise. The public code drops the normalisation of CPS's
    log-density and its 1 / (2 std^2); we keep the normal density, so that the ratio is one of probabilities.
    """

    eta: float

    def __post_init__(self) -> None:
        _check_eta(self.eta)
        if self.eta > 1:
            raise ValueError(
                f"CPS's eta is {self.eta}, expected 0 <= eta <= 1: it sets the share sin(eta pi / 2)"
            )

    def _coefficients(self, sigma: Tensor, sigma_next: Tensor) -> Coefficients:
        angle = self.eta * math.pi / 2
        kept = sigma_next * math.cos(angle)
        return Coefficients(
            1 - sigma_next + kept, kept * (1 - sigma) - (1 - sigma_next) * sigma, sigma_next * math.sin(angle)
        )


@dataclass(frozen=True)
class ODE(_LinearKernel):
    """Euler's step along the velocity; deterministic, so it has no density (std = 0)."""

    def _coefficients(self, sigma: Tensor, sigma_next: Tensor) -> Coefficients:
        return Coefficients(torch.ones_like(sigma), sigma_next - sigma, torch.zeros_like(sigma))


def log_prob(next_latents: Tensor, mean: Tensor, std: Tensor, batch_dims: int = 2) -> Tensor:
    """Log-density of `next_latents` under N(mean, std^2 I), averaged over the latent dimensions.

    The mean, not the sum (early code): the log-ratio's scale then does not grow with resolution. All normal
    constants are included; computed in at least float32.

    Args:
        next_latents, mean: (m, B, *shape), or with other leading dimensions, `batch_dims` of them.
        std: broadcastable with the two.
        batch_dims: leading dimensions to keep (steps, samples); the others are averaged.

    Returns:
        (m, B), the leading dimensions.

    Raises:
        ValueError: where std is 0, as the density is then degenerate.
    """
    if not bool((std > 0).all()):
        raise ValueError(
            "log-probability of a transition without noise (std = 0): expected std > 0; "
            "set eta > 0 and leave deterministic steps (ODE, the last step) out"
        )
    dtype = _at_least_float32(mean.dtype, next_latents.dtype)
    std = std.to(mean.device, dtype)
    deviation = (next_latents.to(dtype) - mean.to(dtype)) / std
    density = -0.5 * deviation.square() - std.log() - 0.5 * math.log(2 * math.pi)
    return density.flatten(batch_dims).mean(-1)


def _sde(rate2: Tensor, sigma: Tensor, sigma_next: Tensor) -> Coefficients:
    """Euler-Maruyama with squared noise rate g^2 and the score correction that keeps the marginals."""
    h = sigma - sigma_next
    pull = rate2 / (2 * sigma)
    return Coefficients(1 - h * pull, -h * (1 + pull * (1 - sigma)), (rate2 * h).sqrt())


def _check_eta(eta: float) -> None:
    if not (eta >= 0 and math.isfinite(eta)):
        raise ValueError(
            f"eta is {eta}, expected a finite number of at least 0: it scales the sampler's noise"
        )


def _at_least_float32(*dtypes: torch.dtype) -> torch.dtype:
    result = torch.float32
    for dtype in dtypes:
        result = torch.promote_types(result, dtype)
    return result
