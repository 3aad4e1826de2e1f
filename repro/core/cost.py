"""What a gradient costs, counted before anything runs.

The unit is one forward of the transformer on one batch of samples at one step. A backward costs b of them (2
when all weights train, about 1 with LoRA), activation checkpointing adds c = 1 recomputed forward per
backward, guidance with a second forward doubles all three, and a KL penalty adds a reference forward per
trained step. Decoding and rewards are measured, not modelled. Per group of W steps (the model is ours):

    | scheme               | forwards | recompute | backward | W = 4, b = 2: c = 1 / c = 0 |
    | exact                |    W     |    c W    |   b W    |          16 / 12            |
    | JAGG (reported)      |    W     |    2 c    |   2 b    |          10 /  8            |
    | JAGG, early code     |  W + 2   |    2 c    |   2 b    |          12 / 10            |

A DanceGRPO step of 21 sampling steps and 5 groups of 4 then costs 21 + 5·16 = 101 exactly and 21 + 3·10 +
2·16 = 83 with JAGG on the first 0.6 of the groups, 17.8 % less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from repro.core.plan import Velocities, plan

if TYPE_CHECKING:
    from repro.core.schemes.scheme import Scheme


class Counts(NamedTuple):
    """Passes through the velocity function, each weighted by the number of steps it carries.

    Attributes:
        forwards: steps forwarded, with or without gradient.
        recomputes: steps forwarded again during the backward by activation checkpointing.
        backwards: steps backpropagated.
    """

    forwards: int
    recomputes: int
    backwards: int


@dataclass(frozen=True)
class CostModel:
    """Prices of the passes, in forwards.

    Attributes:
        backward: b, one backward without the recompute.
        recompute: c, the recompute in one backward: 1 with activation checkpointing, 0 without.
        guidance: whether every velocity takes a second, unconditional forward.
        kl: whether every trained step takes a forward of a reference model.
    """

    backward: float = 2.0
    recompute: float = 0.0
    guidance: bool = False
    kl: bool = False

    def __post_init__(self) -> None:
        if self.backward < 0 or self.recompute < 0:
            raise ValueError(f"prices cannot be negative, got {self}")

    def counts(self, scheme: Scheme, velocities: Velocities = "recompute", anchor_chunk: int = 2) -> Counts:
        """The passes `accumulate_gradient` will make; equal to its `GradientReport.counts`.

        Guidance and the reference model are behind the velocity function, so they enter the price and not the
        counts.

        Args:
            scheme: any.
            velocities: ``rollout``, a fresh cache; ``recompute``, none, or a stale one to ignore;
                ``correct``, a stale one to correct from the anchors.
            anchor_chunk: anchors per backward.
        """
        untracked = len(plan(scheme, velocities, anchor_chunk).untracked)
        k = scheme.n_anchors
        return Counts(forwards=untracked + k, recomputes=k if self.recompute else 0, backwards=k)

    def price(self, counts: Counts, reference_steps: int = 0) -> float:
        """Cost in forwards of given passes, and of `reference_steps` reference forwards where kl is set."""
        passes = counts.forwards + self.recompute * counts.recomputes + self.backward * counts.backwards
        return self._per_velocity * (passes + (reference_steps if self.kl else 0))

    def update_cost(
        self, scheme: Scheme, velocities: Velocities = "recompute", anchor_chunk: int = 2
    ) -> float:
        """Cost in forwards of one gradient."""
        return self.price(self.counts(scheme, velocities, anchor_chunk), len(scheme.needed_steps))

    def step_cost(
        self, n_sampling: int, scheme: Scheme, velocities: Velocities = "recompute", anchor_chunk: int = 2
    ) -> float:
        """Cost in forwards of a training step: sampling with `n_sampling` steps, then one gradient."""
        return self._per_velocity * n_sampling + self.update_cost(scheme, velocities, anchor_chunk)

    @property
    def _per_velocity(self) -> int:
        return 2 if self.guidance else 1


def speedup(baseline: float, method: float) -> float:
    """How many times faster: baseline / method."""
    return baseline / method


def reduction(baseline: float, method: float) -> float:
    """The share of the baseline's cost that is saved: 1 - method / baseline, as the paper reports it."""
    return 1 - method / baseline
