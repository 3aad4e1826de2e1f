"""GRPO on the transitions of a sampler: group advantages, the clipped surrogate, the KL term.

For a prompt with G generations and rewards R, the advantage is A = (R - mean R) / std R within the group. For
trained step j with latents z_j, the policy's velocity v_j fixes the Gaussian of the next latents
(repro.core.sde), hence the importance ratio against the policy that sampled it,

    r_j = exp(log p_v(z_{j+1} | z_j) - log p_old(z_{j+1} | z_j)),    log p averaged over latent dimensions,

and the step's loss, averaged over the B samples:

    L_j = scale * mean_b [ max(-A r_j, -A clip(r_j, 1 - c, 1 + c)) + kl_weight * KL_j ].

KL_j is that of the policy's transition from the reference's. Both have the same std, so with the
log-probability's convention of averaging over the latent dimensions it is
mean_d (mean - mean_ref)^2 / (2 std^2): the KL of the two Gaussians divided by their dimension.
No network is evaluated here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from repro.core.gradient import Surrogate
from repro.core.rollout import Steps, Trajectory
from repro.core.sde import Kernel, log_prob

__all__ = ["ClippedSurrogate", "group_advantages"]


def group_advantages(rewards: Tensor, clip: float = 5.0) -> Tensor:
    """Rewards normalised within each prompt's group, then clipped to [-clip, clip].

    The std is the unbiased one (as DanceGRPO's). A row whose rewards are all equal, or differ by no more than
    rounding does, has zero advantage: over so small a spread noise would look like a preference (ours).

    Args:
        rewards: (P, G), a row per prompt, G >= 2 generations.
        clip: 5 in the early code; math.inf for none.

    Returns:
        (P, G), float32, or float64 for float64 rewards.

    Raises:
        ValueError: if a reward is nan or infinite, or rewards are not (P, G).
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards have shape {tuple(rewards.shape)}, expected (prompts, generations) with at least two "
            "generations a prompt: reshape them, or sample more"
        )
    if not bool(torch.isfinite(rewards).all()):
        count = int((~torch.isfinite(rewards)).sum())
        raise ValueError(
            f"{count} of {rewards.numel()} rewards are nan or infinite, expected none: fix the scorer"
        )
    if not clip > 0:
        raise ValueError(f"the advantage clip is {clip}, expected above 0: use math.inf for none")
    dtype = torch.promote_types(rewards.dtype, torch.float32)
    rounding = 4 * torch.finfo(dtype).eps * rewards.abs().amax(1, keepdim=True).double()
    values = rewards.double()
    equal = values.amax(1, keepdim=True) - values.amin(1, keepdim=True) <= rounding
    deviation = values - values.mean(1, keepdim=True)
    advantages = torch.where(equal, 0.0, deviation / torch.where(equal, 1.0, values.std(1, keepdim=True)))
    return advantages.clamp(-clip, clip).to(dtype)


@dataclass(frozen=True, eq=False)
class ClippedSurrogate:
    """The losses of n trained steps as a function of their velocities; see the module's formulas.

    Attributes:
        latents, next_latents: (n, B, *shape), the transition each step sampled.
        sigmas, next_sigmas: (n,), where each step starts and ends, or (n, B), every sample's own.
        kernel: one for all steps, or n of them.
        old_log_probs: (n, B), from the rollout.
        advantages: (B,).
        clip_range: c, 0.1 in the early code, 1e-4 in DanceGRPO's own scripts.
        scale: the factor of every step's loss; None means 1 / n, so that the steps are averaged.
        kl_weight: weight of the KL term.
        reference_velocities: (n, B, *shape), needed for the KL term alone.

    Indices passed to a call are trained steps 0..n-1, the rows of these tensors (see repro.core.rollout).
    """

    latents: Tensor
    next_latents: Tensor
    sigmas: Tensor
    next_sigmas: Tensor
    kernel: Kernel | Sequence[Kernel]
    old_log_probs: Tensor
    advantages: Tensor
    clip_range: float
    scale: float | None = None
    kl_weight: float = 0.0
    reference_velocities: Tensor | None = None

    def __post_init__(self) -> None:
        n, batch = self.latents.shape[:2]
        expected = {
            "next_latents": tuple(self.latents.shape),
            "sigmas": (n,) if self.sigmas.ndim == 1 else (n, batch),
            "next_sigmas": tuple(self.sigmas.shape),
            "old_log_probs": (n, batch),
            "advantages": (batch,),
            "reference_velocities": tuple(self.latents.shape),
        }
        for name, shape in expected.items():
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)}, expected {shape} to match the latents"
                )
        if isinstance(self.kernel, Sequence) and len(self.kernel) != n:
            raise ValueError(f"{len(self.kernel)} kernels for {n} trained steps: give one, or one per step")
        if not self.clip_range > 0:
            raise ValueError(f"clip_range is {self.clip_range}, expected above 0: at 0 no ratio may move")
        if not (self.kl_weight >= 0 and math.isfinite(self.kl_weight)):
            raise ValueError(f"kl_weight is {self.kl_weight}, expected a finite number of at least 0")
        if self.kl_weight > 0 and self.reference_velocities is None:
            raise ValueError("kl_weight is above 0 without reference_velocities: give both, or kl_weight=0")
        if not bool(torch.isfinite(self.advantages).all()):
            raise ValueError("some advantages are nan or infinite, expected finite: see group_advantages")
        scored = torch.isfinite(self.old_log_probs).all(1)
        if not bool(scored.all()):
            steps = (~scored).nonzero().flatten().tolist()
            raise ValueError(
                f"trained steps {steps} have no log-probability, having been sampled without noise: "
                "set eta > 0 and leave deterministic steps (ODE, the last step) out"
            )

    @classmethod
    def from_trajectory(
        cls,
        trajectory: Trajectory,
        steps: Steps,
        advantages: Tensor,
        clip_range: float,
        *,
        scale: float | None = None,
        kl_weight: float = 0.0,
        reference_velocities: Tensor | None = None,
    ) -> ClippedSurrogate:
        """The surrogate of chosen sampling steps, a list or the first n; trained step j is steps[j].

        Args:
            trajectory: whose kernels, latents and log-probabilities are used.
            steps: strictly increasing, of all samples or of each; none without noise.
            advantages: (B,), in the order of the trajectory's samples.
            clip_range, scale, kl_weight: as in the class.
            reference_velocities: (n, B, *shape), of the trained steps only.
        """
        chosen = trajectory.trained(steps)
        return cls(
            latents=chosen.latents,
            next_latents=chosen.next_latents,
            sigmas=chosen.sigmas,
            next_sigmas=chosen.next_sigmas,
            kernel=chosen.kernels,
            old_log_probs=chosen.log_probs,
            advantages=advantages,
            clip_range=clip_range,
            scale=scale,
            kl_weight=kl_weight,
            reference_velocities=reference_velocities,
        )

    @property
    def n_steps(self) -> int:
        """n, the number of trained steps."""
        return self.latents.shape[0]

    def __call__(self, steps: Sequence[int], velocities: Tensor) -> Surrogate:
        """Losses of the given trained steps, differentiable in `velocities` (m, B, *shape), m = len(steps).

        Returns:
            loss (m,); ratio (m, B) and clipped (m, B), detached. A sample counts as clipped where the clipped
            branch is the larger loss, that is where its gradient through the ratio is zero.
        """
        each = [self._step(j, v) for j, v in zip(steps, velocities, strict=True)]
        losses, ratios, gates = zip(*each, strict=True)
        return Surrogate(torch.stack(losses), torch.stack(ratios), torch.stack(gates))

    def _step(self, j: int, velocity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kernel = self.kernel[j] if isinstance(self.kernel, Sequence) else self.kernel
        # A number, or one a sample against (B, *shape).
        broadcast = (-1, *[1] * (velocity.ndim - 1)) if self.sigmas.ndim == 2 else ()
        sigma, sigma_next = (s[j].reshape(broadcast) for s in (self.sigmas, self.next_sigmas))
        mean, std = kernel.transition(self.latents[j], velocity, sigma, sigma_next)
        log_p = log_prob(self.next_latents[j], mean, std, batch_dims=1)
        ratio = (log_p - self.old_log_probs[j]).exp()
        c, gain = self.clip_range, -self.advantages.to(ratio)
        free, held = gain * ratio, gain * ratio.clamp(1 - c, 1 + c)
        loss = torch.maximum(free, held)
        if self.kl_weight > 0 and self.reference_velocities is not None:
            v_ref = self.reference_velocities[j]
            reference = kernel.transition(self.latents[j], v_ref, sigma, sigma_next).mean
            kl = ((mean - reference) / std).square().flatten(1).mean(1) / 2
            loss = loss + self.kl_weight * kl
        scale = 1 / self.n_steps if self.scale is None else self.scale
        return scale * loss.mean(), ratio.detach(), (held > free).detach()
