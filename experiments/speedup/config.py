"""What the wall-clock table's options mean: its configuration, and the settings and schemes that follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from experiments import paper
from experiments.common.inputs import find_model, read_prompts, reward_of
from repro.core.schemes import registry
from repro.errors import InputError
from repro.training.recipe import Algorithm


class Arm(NamedTuple):
    """What is timed: a scheme by name, the jagg_frac it takes, and whether it is there once more.

    An arm that is there again, under another name, is the null arm: what it seems to save is the timing's
    own error.
    """

    scheme: registry.SchemeName
    jagg_frac: float = 0.0
    again: bool = False


EXACT, AGAIN = Arm("exact"), Arm("exact", again=True)
NULL = "exact-again"
"""The null arm's name."""
FRACTIONS = tuple(fifths / 5 for fifths in range(6))
"""The sweep over jagg_frac."""
Variation = Literal["base", "checkpointing", "velocities", "weights", "group-size", "jagg-frac", "batch"]


Weights = Literal["full", "lora"]


@dataclass(frozen=True, order=True)
class Setting:
    """What is equal for all schemes that are timed against each other.

    Attributes:
        weights: all of them, or LoRA adapters.
        checkpointing: of activations; on is the paper's mode.
        algorithm: whose sampler and trained steps.
        group_size: W.
        batch: images of a prompt that are forwarded together at one step.
        anchor_chunk: anchors in one backward.
        velocities: `recompute`, the paper's layout, or `rollout`, this suite's default.
    """

    weights: Weights = "full"
    checkpointing: bool = True
    algorithm: Algorithm = "dance_grpo"
    group_size: int = 4
    batch: int = 12
    anchor_chunk: int = 2
    velocities: Literal["recompute", "rollout"] = "recompute"


@dataclass(frozen=True)
class Config:
    """The wall-clock table's settings; defaults are the paper's and the early code's."""

    model: str = "tiny-flux"
    """bundled model, diffusers folder or hub id; with --synthetic-weights flux-dev or qwen-image"""
    quick: bool = False
    """few rounds of one prompt, without the sweep, into results/quick"""
    variations: tuple[Variation, ...] = (
        "base",
        "checkpointing",
        "velocities",
        "weights",
        "group-size",
        "jagg-frac",
        "batch",
    )
    """what to vary against the base setting"""
    algorithms: tuple[Algorithm, ...] = ("dance_grpo", "flow_grpo_fast")
    """training recipes; the sweeps over W, jagg_frac and batch are dance_grpo's"""
    schemes: tuple[registry.SchemeName, ...] = ("jagg", "routed", "endpoints-own", "subset")
    """what is timed against exact, and exact again, in the base setting; the others take jagg and routed, the
    sweeps over W and batch jagg alone"""
    rounds: int = 10
    """steps of each scheme in each setting, after one that is dropped"""
    prompts: int = 1
    """prompts per step; minibatches are of one prompt's images, so more of them repeat the same passes"""
    images: int = 12
    """images per prompt"""
    batch: int = 0
    """images of a prompt forwarded together, 0 for all that a process has"""
    lora_rank: int = 32
    """rank of the adapters where LoRA is timed"""
    optimizer: bool = True
    """let AdamW take a step; --no-optimizer where its memory is too much"""
    compile: bool = False
    """torch.compile the transformer"""
    synthetic_weights: bool = False
    """random weights in the true architecture, at full size: nothing is downloaded"""
    reduced: bool = False
    """with --synthetic-weights, a much smaller network, to try a command"""
    reward: str | None = None
    """scorer: hpsv2:PATH, pickscore:PATH, clipscore:PATH or module:function; bundled models have their own"""
    prompts_file: Path | None = None
    """prompts, one a line; the bundled training prompts unless given"""
    size: int | None = None
    """height and width in pixels; the model's own unless given, 720 with --synthetic-weights"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """of the weights"""
    device: str = "cpu"
    """torch device"""
    seed: int = 0
    """of prompts and noise"""
    out: Path | None = None
    """results folder; results, or results/quick"""
    fresh: bool = False
    """measure everything again instead of resuming"""


def settings(config: Config, ranks: int = 1) -> dict[Setting, list[Arm]]:
    """Every setting with the schemes that are timed in it, settings of one policy side by side.

    Args:
        config: as it is on every rank.
        ranks: processes that share the samples; batches are of one's.
    """
    images = config.images // max(1, ranks // config.prompts)
    batch = config.batch or images
    plain = [EXACT, AGAIN, _named("jagg"), _named("routed")]
    chosen: dict[Setting, list[Arm]] = {}

    def add(setting: Setting, arms: list[Arm]) -> None:
        # One group leaves nothing to route.
        kept = [a for a in arms if a.scheme not in ("routed", "subset") or setting.algorithm == "dance_grpo"]
        chosen[setting] = list(dict.fromkeys([*chosen.get(setting, []), *kept]))

    for algorithm in config.algorithms:
        base = Setting(algorithm=algorithm, batch=batch)
        for variation in dict.fromkeys(config.variations):
            if variation == "base":
                add(base, [EXACT, AGAIN, *map(_named, config.schemes)])
            elif variation == "checkpointing":
                add(replace(base, checkpointing=False), plain)
            elif variation == "velocities":
                add(replace(base, velocities="rollout"), plain)
            elif variation == "weights":
                add(replace(base, weights="lora"), plain)
            elif algorithm == "dance_grpo":
                for setting, arms in _sweep(base, variation, images):
                    add(setting, arms)
    # The paper's mode comes first: it is what fits where memory is scarce.
    order = sorted(chosen, key=lambda s: (s.weights, not s.checkpointing, s))
    return {setting: chosen[setting] for setting in order}


def _named(name: registry.SchemeName, jagg_frac: float = paper.JAGG_FRAC.low) -> Arm:
    return Arm(name, jagg_frac if name == "routed" else 0.0)


def _sweep(base: Setting, variation: Variation, images: int) -> Iterator[tuple[Setting, list[Arm]]]:
    """One axis of the heat map, crossed with another."""
    pair = [EXACT, _named("jagg")]
    for checkpointing in (True, False):
        setting = replace(base, checkpointing=checkpointing)
        if variation == "group-size":
            for size in (2, 4, 5, 10):
                yield replace(setting, group_size=size), pair
        elif variation == "jagg-frac":
            yield setting, [EXACT, *(_named("routed", fraction) for fraction in FRACTIONS)]
    if variation == "batch":
        for batch in dict.fromkeys(images // parts for parts in (1, 2, 4) if images % parts == 0):
            for chunk in (1, 2, 4):
                yield replace(base, batch=batch, anchor_chunk=chunk), pair


def default(words: Sequence[str]) -> Config:
    """The same for every model."""
    return Config()


def outline(config: Config) -> str:
    """What a run of this configuration is about to do.

    Raises:
        InputError: no such model, scorer or prompts, or numbers that are too small.
    """
    if config.rounds < 1:
        raise InputError(f"rounds is {config.rounds}: take 1 or more, 6 for an interval of 95 %")
    for name, least in (("prompts", 1), ("images", 2), ("batch", 0)):
        if getattr(config, name) < least:
            raise InputError(f"{name} is {getattr(config, name)}, expected at least {least}")
    if config.synthetic_weights:
        return f"{config.model} with random weights on {config.device}"
    model = find_model(config.model, config.device, config.size)
    reward_of(config.reward, model)
    read_prompts(config.prompts_file, config.prompts)
    return f"{model.name}, {model.device}, {model.pixels} pixels"
