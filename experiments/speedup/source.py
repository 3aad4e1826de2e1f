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
from repro.training.policy import Policy


@dataclass(frozen=True)
class Source:
    """Where policies come from, and what scores them.

    Attributes:
        name: of the results folder.
        checkpoint: its folder, if there is one.
        scorer: None where advantages are random.
        prompts: of a step.
    """

    name: str
    checkpoint: Path | None
    load: Callable[[], Backbone]
    scorer: Scorer | None
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
        return Source(name, None, build, None, [f"prompt {i}" for i in range(config.prompts)])
    model = load_model(config.model, config.device, config.size)
    scorer, _ = load_scorer(config.reward, model)
    prompts = load_prompts(config.prompts_file, config.prompts, config.seed)
    return Source(model.name, model.path, lambda: model.backbone(dtype), scorer, prompts)


def make_policy(config: Config, source: Source, weights: str, checkpointing: bool, ranks: Ranks) -> Policy:
    """The model in one of the modes that settings ask for."""
    policy = Policy(
        source.load(),
        lora_rank=config.lora_rank if weights == "lora" else 0,
        checkpointing=checkpointing,
        seed=config.seed,
        ranks=ranks,
    )
    if config.compile:
        policy.backbone.transformer.compile()
    return policy
