"""One object for one gradient: the samples it is accumulated over, and what is minimised on them.

Sampling steps are translated into trained ones in one place (`repro.core.rollout`), and a trainer, a table or
a benchmark that needs a gradient, or a part of the way to one, asks a `Minibatch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from repro.core.gradient import GradientReport, RolloutVelocities, Stale, VelocityFn, accumulate_gradient
from repro.core.grpo import ClippedSurrogate
from repro.core.plan import chunked
from repro.core.rollout import Steps, Trajectory, reindex
from repro.core.schemes.scheme import Scheme

__all__ = ["Minibatch"]


@dataclass(frozen=True, eq=False)
class Minibatch:
    """B samples that go through the network together, and the clipped objective on them.

    Attributes:
        network: the velocity over *sampling* steps that sampled the trajectory, conditioning inside.
        trajectory: of the B samples.
        steps: the n trained sampling steps, of all samples or of each.
        advantages: (B,).
        clip_range, scale, kl_weight, reference_velocities: see `ClippedSurrogate`.
    """

    network: VelocityFn
    trajectory: Trajectory
    steps: Steps
    advantages: Tensor
    clip_range: float
    scale: float | None = None
    kl_weight: float = 0.0
    reference_velocities: Tensor | None = None

    def __len__(self) -> int:
        """B."""
        return len(self.advantages)

    @property
    def latents(self) -> Tensor:
        """(n, B, *shape), z_j at the trained steps."""
        return self.trajectory.trained(self.steps).latents

    @property
    def velocity(self) -> VelocityFn:
        """The network over the n trained steps."""
        return reindex(self.network, self.steps)

    @property
    def surrogate(self) -> ClippedSurrogate:
        """The objective over the n trained steps."""
        return ClippedSurrogate.from_trajectory(
            self.trajectory,
            self.steps,
            self.advantages,
            self.clip_range,
            scale=self.scale,
            kl_weight=self.kl_weight,
            reference_velocities=self.reference_velocities,
        )

    @property
    def rollout(self) -> RolloutVelocities:
        """The velocities of the n trained steps, as they were sampled."""
        return self.trajectory.cache(self.steps)

    @torch.no_grad()
    def velocities(self, steps: Sequence[int], chunk: int) -> Tensor:
        """(n, B, *shape): the network's, now, at some trained steps, `chunk` at a time; zero elsewhere."""
        latents, velocity = self.latents, self.velocity
        found = torch.zeros_like(latents, dtype=torch.promote_types(latents.dtype, torch.float32))
        for some in chunked(steps, chunk):
            found[list(some)] = velocity(some, latents[list(some)]).to(found)
        return found

    def accumulate(
        self,
        scheme: Scheme,
        *,
        velocities: Literal["rollout", "recompute"] = "recompute",
        policy_version: int | None = None,
        stale: Stale = "refuse",
        anchor_chunk: int = 2,
        checkpointing: bool = False,
    ) -> GradientReport:
        """Add the scheme's estimate of the objective's gradient to .grad.

        Args:
            scheme: of n steps.
            velocities: kept from the rollout, or forwarded again.
            policy_version, stale, anchor_chunk, checkpointing: see `accumulate_gradient`.
        """
        return accumulate_gradient(
            scheme,
            self.velocity,
            self.surrogate,
            self.latents,
            rollout=self.rollout if velocities == "rollout" else None,
            policy_version=policy_version,
            stale=stale,
            anchor_chunk=anchor_chunk,
            checkpointing=checkpointing,
        )
