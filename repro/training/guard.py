"""A policy and a scorer as a rollout sees them: timed, and unable to do harm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repro.distributed.ranks import ALONE, Ranks
from repro.rewards import Scorer
from repro.training.policy import Policy
from repro.training.stopwatch import Stopwatch


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
    """A scorer whose failures are a step's `Fault`, on every rank, and whose time is its own.

    All ranks score the same number of times: one that went on alone would wait for the others for ever.
    """

    def __init__(self, scorer: Scorer, clock: Stopwatch, ranks: Ranks = ALONE) -> None:
        self.name = scorer.name
        self._score = clock.timed("reward", scorer)
        self._ranks = ranks

    def __call__(self, images: Tensor, prompts: Sequence[str], /) -> Tensor:
        fault, rewards = None, torch.empty(0)
        try:
            rewards = self._checked(images, prompts)
        except Fault as error:
            fault = error
        faults = [found for found in self._ranks.gather(None if fault is None else str(fault)) if found]
        if faults:  # every rank with the same words: they become a row, which all ranks compare
            raise Fault(faults[0]) from fault
        return rewards

    def _checked(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        try:
            rewards = self._score(images, prompts)
        except Exception as error:  # a scorer may raise anything; KeyboardInterrupt is not among it
            text = " ".join(str(error).split()) or "without a message"
            raise Fault(f"scorer {self.name} raised {type(error).__name__}: {text}") from error
        bad = int((~torch.isfinite(rewards)).sum())
        if bad:
            raise Fault(f"{bad} of {len(rewards)} rewards of {self.name} are nan or infinite")
        return rewards
