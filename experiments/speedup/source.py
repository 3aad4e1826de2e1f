"""What the wall-clock table times: a model with its weights or with random ones, its scorer and prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments import paper
from experiments.common.inputs import check_device, load_model, load_prompts, load_scorer
from experiments.speedup.config import Config
from repro.distributed.ranks import Ranks
from repro.errors import InputError
from repro.models import Backbone, synthetic
from repro.rewards import Scorer
from repro.rewards.base import UserScorer
from repro.training import policy as policies
from repro.training.policy import Policy
from repro.training.recipe import Recipe


@dataclass(frozen=True)
class Source:
    """Where policies come from, and what scores them.

    Attributes:
        name: of the results folder.
        checkpoint: its folder, if there is one.
        scorer: of random rewards where weights are random: their images say nothing.
        prompts: of a step.
    """

    name: str
    checkpoint: Path | None
    load: Callable[[], Backbone]
    scorer: Scorer
    prompts: list[str]


def load_source(config: Config) -> Source:
    """What the configuration names.

    Raises:
        ValueError: a device, model, reward or prompts that cannot be used.
    """
    dtype = getattr(torch, config.dtype)
    if config.reduced and not config.synthetic_weights:
        raise InputError("--reduced is for --synthetic-weights: pass both, or neither")
    if config.synthetic_weights:
        check_device(config.device)
        size = config.size or (64 if config.reduced else int(paper.RESOLUTION.low))

        def build() -> Backbone:
            return synthetic.build(config.model, dtype, config.device, size, config.reduced, config.seed)

        synthetic.check(config.model, dtype, config.device, config.reduced)
        name = f"{config.model}-synthetic" + ("-reduced" if config.reduced else "")
        return Source(name, None, build, _random(config.seed), [f"prompt {i}" for i in range(config.prompts)])
    model = load_model(config.model, config.device, config.size)
    scorer, _ = load_scorer(config.reward, model)
    prompts = load_prompts(config.prompts_file, config.prompts, config.seed)
    return Source(model.name, model.path, lambda: model.backbone(dtype), scorer, prompts)


def _random(seed: int) -> UserScorer:
    generator = torch.Generator().manual_seed(seed)
    return UserScorer("random", lambda images, prompts: torch.randn(len(images), generator=generator))


def make_policy(config: Config, source: Source, recipe: Recipe, ranks: Ranks) -> Policy:
    """The model as `recipe` trains it."""
    policy = policies.make_policy(source.load(), recipe, config.seed, ranks)
    if config.compile:
        policy.backbone.transformer.compile()
    return policy
