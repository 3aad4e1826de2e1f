"""A scorer whose failures become a `Fault`: it raised, or returned other than one finite number an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from repro.distributed.ranks import ALONE, Ranks
from repro.rewards import Scorer


class Fault(Exception):
    """Why a training step cannot be learned from, in one line."""


class Guarded:
    """A scorer whose failures are a step's `Fault`, on every rank.

    All ranks score the same number of times: one that went on alone would wait for the others for ever.
    """

    def __init__(self, scorer: Scorer, ranks: Ranks = ALONE) -> None:
        self.name = scorer.name
        self._scorer = scorer
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
            rewards = self._scorer(images, prompts)
        except Exception as error:  # a scorer may raise anything; KeyboardInterrupt is not among it
            text = " ".join(str(error).split()) or "without a message"
            raise Fault(f"scorer {self.name} raised {type(error).__name__}: {text}") from error
        bad = int((~torch.isfinite(rewards)).sum())
        if bad:
            raise Fault(f"{bad} of {len(rewards)} rewards of {self.name} are nan or infinite")
        return rewards
