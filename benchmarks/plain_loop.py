"""The update as DanceGRPO's trainer does it, written afresh: one sample, one step, one forward, one backward.

This is what the batched update is compared with. It uses nothing of repro's core: the SDE step, its density
and the clipped objective are spelled out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repro.core.rollout import Trajectory
from repro.models import Backbone, Conditioning


def plain_update(
    backbone: Backbone,
    conditioning: Conditioning,
    trajectory: Trajectory,
    advantages: Tensor,
    n_steps: int,
    eta: float,
    clip_range: float,
) -> float:
    """Accumulate the gradient of the mean clipped loss of DanceGRPO's SDE; returns the loss.

    Args:
        backbone: whose transformer is trained.
        conditioning: of B samples.
        trajectory: of B samples, sampled with noise of constant rate `eta`.
        advantages: (B,).
        n_steps: the first of the trajectory's steps, which are trained.
        eta: noise of the SDE.
        clip_range: of the importance ratio.
    """
    total = 0.0
    for b in range(len(advantages)):
        prompt = conditioning.index([b])
        for j in range(n_steps):
            z, z_next = trajectory.latents[j, b : b + 1], trajectory.latents[j + 1, b : b + 1]
            sigma, sigma_next = float(trajectory.sigmas[j]), float(trajectory.sigmas[j + 1])
            v = backbone.velocity(z, sigma, prompt).float()
            h = sigma - sigma_next
            score = -(z + (1 - sigma) * v) / sigma
            mean = z - h * v + h * eta**2 / 2 * score
            std = eta * math.sqrt(h)
            log_p = -((z_next - mean) ** 2) / (2 * std**2) - math.log(std) - math.log(2 * math.pi) / 2
            ratio = torch.exp(log_p.mean(dim=(1, 2)) - trajectory.log_probs[j, b])
            a = advantages[b]
            loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - clip_range, 1 + clip_range)).mean()
            loss = loss / (n_steps * len(advantages))
            loss.backward()
            total += float(loss)
    return total
