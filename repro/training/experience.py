"""What one update learns from: each prompt's images, their rewards and the trajectories that made them.

For a prompt, a group of images is sampled by a stochastic sampler from one and the same initial noise (early
code), decoded and scored; rewards become advantages within the group. Every prompt has random streams of its
own, from (seed, index) alone, so its experience does not depend on the other prompts of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from repro.core.rollout import Trajectory, sample, standard_normal
from repro.core.sde import Kernel
from repro.distributed.fsdp import shared_advantages
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.training.stopwatch import Stopwatch

if TYPE_CHECKING:
    from repro.models import Conditioning, FlowModel
    from repro.rewards import Scorer


@dataclass(frozen=True, eq=False)
class Experience:
    """One prompt's group of B images, or this rank's part of it.

    Attributes:
        prompt: the text.
        conditioning: of the B samples, encoded.
        trajectory: of the B samples, S sampling steps.
        images: (B, 3, H, W) in [0, 1].
        rewards: (B,), as the scorer gave them.
        advantages: (B,), normalised within the whole group and clipped.
    """

    prompt: str
    conditioning: Conditioning
    trajectory: Trajectory
    images: Tensor
    rewards: Tensor
    advantages: Tensor


def gather(
    model: FlowModel,
    scorer: Scorer,
    prompts: Sequence[str],
    *,
    images_per_prompt: int,
    sigmas: Tensor,
    kernel: Kernel | Sequence[Kernel],
    seed: int,
    guidance: float = 1.0,
    advantage_clip: float = 5.0,
    policy_version: int = 0,
    clock: Stopwatch | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[Experience]:
    """Sample, decode and score, one prompt at a time: of all prompts and images, this rank's part.

    Args:
        model: the policy.
        scorer: the reward.
        prompts: one group each.
        images_per_prompt: at least 2, or there is nothing to compare a reward with.
        sigmas: (S + 1,), the sampler's noise levels.
        kernel: the sampler's transition, or one a step.
        seed: with a prompt's index, of its initial noise and its sampling noise.
        guidance: true classifier-free guidance, 1 for none.
        advantage_clip: largest absolute advantage.
        policy_version: the trajectories', see `repro.core.rollout.Trajectory`.
        clock: times decoding and scoring, as ``decode`` and ``reward``.
        ranks: who shares the prompts or, where there are fewer prompts than ranks, their images.
    """
    from repro.models import bind

    if images_per_prompt < 2:
        raise InputError(f"{images_per_prompt} images a prompt cannot be compared: take 2 or more")
    clock = clock or Stopwatch()
    for i, own in ranks.parts(len(prompts), images_per_prompt, "prompts"):
        prompt = prompts[i]
        generator = torch.Generator().manual_seed(seed * 1_000_003 + i)
        conditioning = model.encode([prompt], negative=guidance > 1).repeat(len(own))
        noise = torch.randn(1, *model.latent_shape(), generator=generator)
        noise = noise.expand(len(own), *noise.shape[1:]).to(model.device)
        trajectory = sample(
            bind(model, conditioning, sigmas, guidance),
            noise,
            sigmas,
            kernel,
            policy_version=policy_version,
            draw=partial(_draw, generator, images_per_prompt, own),
        )
        with clock("decode"):
            images = model.decode(trajectory.final)
        with clock("reward"):
            rewards = scorer(images, [prompt] * len(own))
        advantages = shared_advantages(rewards, images_per_prompt, ranks, advantage_clip).to(noise.device)
        yield Experience(prompt, conditioning, trajectory, images, rewards, advantages)


def _draw(generator: torch.Generator, total: int, own: range, like: Tensor) -> Tensor:
    """A rank's part of all images' noise: an image's does not depend on who samples which."""
    return standard_normal(like, generator, total)[:, own.start : own.stop]
