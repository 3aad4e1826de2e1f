"""A policy and a scorer as a rollout sees them: timed, and unable to do harm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repro.policy import Policy
from repro.rewards import Scorer
from repro.stopwatch import Stopwatch


class Fault(Exception):
    """Why a training step cannot be learned from, in one line."""


class Timed:
    """A policy whose decoding is timed apart from what calls it."""

    def __init__(self, policy: Policy, clock: Stopwatch) -> None:
        self._policy = policy
        self.decode = clock.timed("decode", policy.decode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


class Guarded:
    """A scorer whose failures are a step's `Fault`, and whose time is its own."""

    def __init__(self, scorer: Scorer, clock: Stopwatch) -> None:
        self.name = scorer.name
        self._score = clock.timed("reward", scorer)

    def __call__(self, images: Tensor, prompts: Sequence[str], /) -> Tensor:
        try:
            rewards = self._score(images, prompts)
        except Exception as error:  # a scorer may raise anything; KeyboardInterrupt is not among it
            text = " ".join(str(error).split()) or "without a message"
            raise Fault(f"scorer {self.name} raised {type(error).__name__}: {text}") from error
        bad = int((~torch.isfinite(rewards)).sum())
        if bad:
            raise Fault(f"{bad} of {len(rewards)} rewards of {self.name} are nan or infinite")
        return rewards
