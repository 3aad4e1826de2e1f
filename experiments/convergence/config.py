"""Which training runs to compare: their settings, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from experiments.convergence.arms import ArmName, RegimeName
from repro.training import logs
from repro.training.overrides import Overrides
from repro.training.recipe import Algorithm

CHOICES = ("arms", "regimes", "lr_factors", "seeds", "fewer_seeds", "checkpoint_every", "log", "save")
"""Fields of the configuration that choose runs, or leave their results as they are."""


@dataclass(frozen=True)
class Config:
    """Training runs to compare; a recipe's settings below replace the preset's."""

    model: str = "tiny-flux"
    """bundled model (tiny-flux, tiny-qwen-image), diffusers folder, or hub id"""
    algorithm: Algorithm = "dance_grpo"
    """which preset to start from"""
    quick: bool = False
    """four arms, at most two seeds, 6 steps and 8 evaluation prompts, into results/quick"""
    arms: tuple[ArmName, ...] = ()
    """ways to train; all that the algorithm has unless given"""
    regimes: tuple[RegimeName, ...] = ("comfortable",)
    """regimes in which the arms are compared"""
    lr_factors: tuple[float, ...] = (1.0,)
    """multiples of the recipe's learning rate"""
    seeds: int = 6
    """training seeds of the arms on which a claim rests: exact, jagg, endpoints-own, subset, subset-paper"""
    fewer_seeds: int = 3
    """training seeds of the other arms"""
    steps: int = 16
    """training steps"""
    evaluate_every: int = 4
    """training steps between two evaluations; as many times more where a regime trains longer"""
    start_noise: float | None = None
    """noise on every weight matrix of the start, in its standard deviations; 0.6 for models of the bundled
    size, which have little to learn without, and 0 for others unless given"""
    train_prompts: int = 0
    """prompts to train on, 0 for all there are"""
    eval_prompts: int = 64
    """prompts to evaluate on; few make seeds differ by which of them they happened to learn"""
    eval_images: int = 2
    """images per evaluation prompt"""
    reward: str | None = None
    """scorer to train on: hpsv2:PATH, ..., or module:function; bundled models have their own"""
    eval_rewards: tuple[str, ...] = ()
    """scorers to evaluate with besides; bundled models have two"""
    prompts_file: Path | None = None
    """training prompts, one a line; the bundled ones unless given"""
    eval_prompts_file: Path | None = None
    """evaluation prompts, one a line; the bundled ones unless given"""
    recipe: Overrides = field(default_factory=Overrides)
    """settings of the recipe, in place of the preset's"""
    checkpoint_every: int = 10
    """training steps between two saved states"""
    save: bool = False
    """keep every cell's trained policy, in folder policies, for the stock pipeline"""
    log: logs.LogKind = "none"
    """live curves besides the tables"""
    device: str = "cpu"
    """torch device"""
    seed: int = 0
    """of the prompts, and the first training seed"""
    out: Path | None = None
    """results folder; results, or results/quick"""
    fresh: bool = False
    """train everything again instead of resuming"""
