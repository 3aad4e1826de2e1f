"""What the wall-clock table's options mean: its configuration, and the settings and schemes that follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from experiments import paper
from repro.core.schemes import registry
from repro.training.recipe import Algorithm

NamedScheme: TypeAlias = tuple[registry.SchemeName, float]
"""A scheme's name, and the jagg_frac it takes."""
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
        batch: samples forwarded together at one step.
        anchor_chunk: anchors in one backward.
        velocities: `recompute`, the paper's layout, or `rollout`, this suite's default.
    """

    weights: Weights = "full"
    checkpointing: bool = True
    algorithm: Algorithm = "dance_grpo"
    group_size: int = 4
    batch: int = 48
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
    """what is timed against exact in the base setting; the others take exact, jagg and routed, the sweeps
    over W and batch exact and jagg"""
    rounds: int = 7
    """steps of each scheme in each setting, after one that is dropped"""
    prompts: int = 4
    """prompts per step"""
    images: int = 12
    """images per prompt"""
    batch: int = 0
    """samples forwarded together, 0 for all that a process has"""
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


def settings(config: Config, ranks: int = 1) -> dict[Setting, list[NamedScheme]]:
    """Every setting with the schemes that are timed in it, settings of one policy side by side.

    Args:
        config: as it is on every rank.
        ranks: processes that share the samples; batches are of one's.
    """
    samples = config.prompts * config.images // ranks
    batch = config.batch or samples
    plain = [_named("exact"), _named("jagg"), _named("routed")]
    chosen: dict[Setting, list[NamedScheme]] = {}

    def add(setting: Setting, schemes: list[NamedScheme]) -> None:
        # One group leaves nothing to route.
        kept = [s for s in schemes if s[0] not in ("routed", "subset") or setting.algorithm == "dance_grpo"]
        chosen[setting] = list(dict.fromkeys([*chosen.get(setting, []), *kept]))

    for algorithm in config.algorithms:
        base = Setting(algorithm=algorithm, batch=batch)
        for variation in dict.fromkeys(config.variations):
            if variation == "base":
                add(base, [_named("exact"), *map(_named, config.schemes)])
            elif variation == "checkpointing":
                add(replace(base, checkpointing=False), plain)
            elif variation == "velocities":
                add(replace(base, velocities="rollout"), plain)
            elif variation == "weights":
                add(replace(base, weights="lora"), plain)
            elif algorithm == "dance_grpo":
                for setting, schemes in _sweep(base, variation, samples):
                    add(setting, schemes)
    # The paper's mode comes first: it is what fits where memory is scarce.
    order = sorted(chosen, key=lambda s: (s.weights, not s.checkpointing, s))
    return {setting: chosen[setting] for setting in order}


def _named(name: registry.SchemeName, jagg_frac: float = paper.JAGG_FRAC.low) -> NamedScheme:
    return (name, jagg_frac if name == "routed" else 0.0)


def _sweep(base: Setting, variation: Variation, samples: int) -> Iterator[tuple[Setting, list[NamedScheme]]]:
    """One axis of the heat map, crossed with another."""
    pair = [_named("exact"), _named("jagg")]
    for checkpointing in (True, False):
        setting = replace(base, checkpointing=checkpointing)
        if variation == "group-size":
            for size in (2, 4, 5, 10):
                yield replace(setting, group_size=size), pair
        elif variation == "jagg-frac":
            yield setting, [_named("exact"), *(_named("routed", fifths / 5) for fifths in range(6))]
    if variation == "batch":
        for batch in dict.fromkeys(samples // parts for parts in (1, 2, 4) if samples % parts == 0):
            for chunk in (1, 2, 4):
                yield replace(base, batch=batch, anchor_chunk=chunk), pair
