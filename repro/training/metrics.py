"""What a training step leaves behind: one row of metrics, and seconds per phase apart from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from repro.core.gradient import GradientReport

METRICS: dict[str, type] = {
    "step": int,
    "reward_mean": float,
    "reward_std": float,
    "reward_group_std": float,
    "advantage_std": float,
    "advantage_max": float,
    "silent_prompts": int,
    "loss": float,
    "ratio_mean": float,
    "ratio_deviation": float,
    "clip_fraction": float,
    "grad_norm": float,
    "learning_rate": float,
    "updates": int,
    "rollout_forwards": int,
    "forwards": int,
    "recomputes": int,
    "backwards": int,
    "reference_forwards": int,
    "fault": str,
}
"""Columns of one training step.

reward_group_std is the mean of the spreads within a prompt, silent_prompts counts those without any, and
ratio_deviation is the largest |ratio - 1|. loss is the mean over those trained steps that the scheme looks
at; learning_rate is that of the first update. updates are optimizer steps made. rollout_forwards are the
sampler's and forwards, recomputes, backwards and reference_forwards the updates' passes, of one image at one
step.
"""

PHASES = ("rollout", "decode", "reward", "update", "optimizer")
"""Parts of a training step that are timed."""


class StepRecord(NamedTuple):
    """One training step: values by the columns of `METRICS`, seconds by `PHASES`."""

    metrics: dict[str, Any]
    seconds: dict[str, float]


@dataclass
class Tally:
    """Collects a step's row; what a fault left out is nan.

    Attributes:
        group_size: B, images of a prompt.
        rewards, advantages: (n,), of groups one after the other.
        losses, grad_norms: one per update.
        updates: optimizer steps made.
        rollout_forwards, reference_forwards: passes of one image at one step, through the sampled policy and
            through the reference.
    """

    group_size: int
    rewards: Tensor = field(init=False)
    advantages: Tensor = field(init=False)
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    updates: int = 0
    rollout_forwards: int = 0
    reference_forwards: int = 0
    _reports: list[tuple[GradientReport, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        import torch

        self.rewards = self.advantages = torch.full((self.group_size,), math.nan)

    @staticmethod
    def merge(tallies: Sequence[Tally]) -> Tally:
        """One step's tallies, one of each rank's samples, as if one process had counted them all.

        Losses, gradient norms, updates and the rollout's forwards are every rank's already.
        """
        import torch

        merged = replace(
            tallies[0],
            reference_forwards=sum(t.reference_forwards for t in tallies),
            _reports=[report for t in tallies for report in t._reports],
        )
        merged.rewards = torch.cat([t.rewards for t in tallies])
        merged.advantages = torch.cat([t.advantages for t in tallies])
        return merged

    def begin_update(self) -> None:
        """From here on reports belong to another update."""
        self.losses.append(0.0)

    def add(self, report: GradientReport, images: int, share: float) -> None:
        """Take what a micro-batch of `images` images gave, its loss seen at a share of the trained steps."""
        self._reports.append((report, images))
        self.losses[-1] += report.loss / share

    def metrics(self) -> dict[str, Any]:
        """The row, without step, learning_rate and fault."""
        rewards = self.rewards.view(-1, self.group_size)
        advantages = self.advantages.view(-1, self.group_size)
        row: dict[str, Any] = {
            "reward_mean": float(rewards.mean()),
            "reward_std": float(rewards.std()),
            "reward_group_std": float(rewards.std(1).mean()),
            "advantage_std": float(advantages.std()),
            "advantage_max": float(advantages.abs().max()),
            "silent_prompts": int((advantages == 0).all(1).sum()),
            "loss": _mean(self.losses),
            "ratio_mean": self._over_images(lambda r: r.ratio_mean),
            "ratio_deviation": max((r.ratio_max_deviation for r, _ in self._reports), default=math.nan),
            "clip_fraction": self._over_images(lambda r: r.clip_fraction),
            "grad_norm": _mean(self.grad_norms),
            "updates": self.updates,
            "rollout_forwards": self.rollout_forwards,
            "reference_forwards": self.reference_forwards,
        }
        for name in ("forwards", "recomputes", "backwards"):
            row[name] = sum(getattr(r.counts, name) * images for r, images in self._reports)
        return row

    def _over_images(self, value: Callable[[GradientReport], float]) -> float:
        total = sum(images for _, images in self._reports)
        return sum(value(r) * images for r, images in self._reports) / total if total else math.nan


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
