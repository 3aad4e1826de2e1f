"""A trainer of a random FLUX of a few thousand weights, for pictures more red than blue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from conftest import CAPTIONS
from torch import Tensor

from repro.models import load
from repro.rewards.base import UserScorer
from repro.training.policy import make_policy, weights_dtype
from repro.training.recipe import Recipe
from repro.training.trainer import Trainer

RECIPE = Recipe(sampling_steps=5, eta=0.7, prompts=2, images=4, learning_rate=1e-3)
PROVENANCE = {"config": {}, "seed": 0, "checkpoint_sha256": None}


def redness(images: Tensor, prompts: list[str]) -> Tensor:
    """How much more red than blue."""
    return (images[:, 0] - images[:, 2]).mean((1, 2))


def make(folder: Path, recipe: Recipe = RECIPE, scorer: Any = redness, steps: int = 4) -> Trainer:
    policy = make_policy(load(folder, weights_dtype(recipe)), recipe)
    return Trainer(recipe, policy, UserScorer("redness", scorer), CAPTIONS[:5], seed=3, steps=steps)


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in trainer.policy.parameters])
