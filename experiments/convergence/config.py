"""Which training runs to compare: their settings, the runs that follow, and what is refused of both.

Nothing here needs torch, so the command answers at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from experiments.common.inputs import announce, find_model, named, read_prompts, reward_of, rows
from experiments.convergence.arms import REGIMES, REWARD, ArmName, RegimeName, Run, arms_of
from experiments.convergence.plans import FOUR, PlanName, Runs, plan_of
from repro import rewards, zoo
from repro.errors import InputError
from repro.provenance import plain
from repro.results import format_value
from repro.training import logs
from repro.training.recipe import PRESETS, Algorithm, Recipe, dance_grpo, preset

BUNDLED_NOISE = 0.6
"""Standard deviations of noise on the start of models of the bundled size; others start as they are."""
CHOICES = (
    "plan",
    "arms",
    "regimes",
    "lr_factors",
    "seeds",
    "fewer_seeds",
    "checkpoint_every",
    "log",
    "save",
)
"""Fields of the configuration that choose runs, or leave their results as they are."""


@dataclass(frozen=True)
class Config:
    """Training runs to compare. Without further options those of the committed table, or for a model of your
    own all arms; --arms, --regimes, --lr-factors and --seeds choose others."""

    model: str = "tiny-flux"
    """bundled model (tiny-flux, tiny-qwen-image), diffusers folder, or hub id"""
    algorithm: Algorithm = "dance_grpo"
    """which preset to start from"""
    plan: PlanName = "table"
    """which table: the committed one, or one of those in results/sweep that led to its settings"""
    quick: bool = False
    """four arms, at most two seeds, 6 steps and 8 evaluation prompts, into results/quick"""
    arms: tuple[ArmName, ...] = ()
    """ways to train, instead of the plan's"""
    regimes: tuple[RegimeName, ...] = ()
    """regimes in which the arms are compared, instead of the plan's"""
    lr_factors: tuple[float, ...] = ()
    """multiples of the recipe's learning rate, instead of the plan's"""
    seeds: int | None = None
    """training seeds of the arms on which a claim rests: exact, jagg, endpoints-own, subset, subset-paper"""
    fewer_seeds: int | None = None
    """training seeds of the other arms, at most"""
    steps: int = 16
    """training steps"""
    evaluate_every: int = 4
    """training steps between two evaluations; as many times more where a regime trains longer"""
    start_noise: float = BUNDLED_NOISE
    """noise on every weight matrix of the start, in its standard deviations: models of the bundled size have
    little to learn without, others start as they are"""
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
    recipe: Recipe = field(default_factory=lambda: dance_grpo(bundled=True))
    """settings of the recipe; the defaults are the preset's for this algorithm and size of model"""
    checkpoint_every: int = 10
    """training steps between two saved states"""
    save: bool = False
    """keep every run's trained policy, in folder policies, for the stock pipeline"""
    log: logs.LogKind = "none"
    """live curves besides the tables"""
    device: str = "cpu"
    """torch device"""
    seed: int = 0
    """of the prompts, and the first training seed"""
    out: Path | None = None
    """results folder; results, the plan's folder in it, or results/quick"""
    fresh: bool = False
    """train everything again instead of resuming"""

    @property
    def folder(self) -> Path:
        """Of a model under an algorithm, such as results/tiny-flux-dance_grpo."""
        place = "quick" if self.quick else "" if self.plan == "table" else self.plan
        return (self.out or Path("results") / place) / f"{find_model(self.model).name}-{self.algorithm}"


def of(model: str, algorithm: Algorithm, plan: PlanName = "table") -> Config:
    """The configuration of a model's table: the preset for its size, and what its plan changes."""
    small = find_model(model).small
    changed = plan_of(plan, model, algorithm)
    return replace(
        Config(model, algorithm, plan, start_noise=BUNDLED_NOISE if small else 0.0),
        recipe=replace(preset(algorithm, small), **changed.recipe),
        **changed.settings,
    )


def default(words: Sequence[str]) -> Config:
    """What the options in these words change: it depends on three of them."""
    algorithm = named(words, "--algorithm", Config.algorithm)
    return of(
        named(words, "--model", Config.model),
        algorithm if algorithm in PRESETS else Config.algorithm,  # type: ignore[arg-type]
        named(words, "--plan", Config.plan),  # type: ignore[arg-type]
    )


def settled(config: Config) -> Config:
    """The configuration as it is run: small where it is a quick one, with its scorers' names.

    Raises:
        InputError: what cannot be run, as far as that can be told without torch.
        FileNotFoundError: no such model.
    """
    model = find_model(config.model)
    if config.quick:
        config = _quick(config)
    logs.check(config.log)
    if config.train_prompts < 0:
        raise InputError(f"train_prompts is {config.train_prompts}, expected 0, for all, or more")
    for name in ("steps", "evaluate_every", "checkpoint_every", "eval_prompts", "eval_images"):
        if getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}, expected at least 1")
    if not (config.start_noise >= 0 and math.isfinite(config.start_noise)):
        raise InputError(
            f"start_noise is {config.start_noise}, expected 0 or more, in a weight's standard deviations"
        )
    if config.recipe.scheme != "exact" or config.recipe.subset_steps:
        raise InputError("--scheme and --subset-steps are what the arms differ in: choose some with --arms")
    for runs in chosen(config):
        known = arms_of(config.algorithm)
        if unknown := [arm for arm in runs.arms if arm not in known]:
            raise InputError(
                f"{config.algorithm} has no arm {unknown[0]}, expected some of {', '.join(known)}"
            )
        for name in ("seeds", "fewer_seeds"):
            if getattr(runs, name) < 1:
                raise InputError(f"{name} is {getattr(runs, name)}, expected at least 1")
        for regime in runs.regimes:
            try:
                REGIMES[regime].change(config.recipe).check()
            except InputError as error:
                raise InputError(f"{regime}: {error}") from None
    read_prompts(config.prompts_file, config.train_prompts)
    if config.eval_prompts_file is not None:
        read_prompts(config.eval_prompts_file, config.eval_prompts)
    reward = reward_of(config.reward, model)
    bundled = tuple(zoo.EVALUATION_SCORERS) if reward == zoo.TRAINING_SCORER else ()
    for spec in config.eval_rewards:
        rewards.check(spec)
    return replace(config, reward=reward, eval_rewards=config.eval_rewards or bundled)


def _quick(config: Config) -> Config:
    return replace(
        config,
        steps=min(config.steps, 6),
        evaluate_every=min(config.evaluate_every, 3),
        eval_prompts=min(config.eval_prompts, 8),
        eval_images=min(config.eval_images, 2),
        recipe=replace(config.recipe, prompts=min(config.recipe.prompts, 2)),
    )


def chosen(config: Config) -> tuple[Runs, ...]:
    """The plan's runs; its first alone where options change it, and where it is a quick run."""
    planned = plan_of(config.plan, config.model, config.algorithm).runs
    values = {f.name: getattr(config, f.name) for f in fields(Runs)}
    given = {name: value for name, value in values.items() if value not in ((), None)}
    if config.quick:
        seeds = min(given.get("seeds", planned[0].seeds), 2)
        return (replace(planned[0], **{"arms": FOUR, **given, "seeds": seeds}),)
    return (replace(planned[0], **given),) if given else planned


def planned(config: Config) -> list[Run]:
    """The training runs one by one, in the order they are made."""
    return list(
        dict.fromkeys(run for runs in chosen(config) for run in runs.listed(config.algorithm, config.seed))
    )


def identity(config: Config) -> dict[str, Any]:
    """The settings that a row depends on besides its own run: the baseline's recipe and the rest."""
    settings: Mapping[str, Any] = plain(config)
    kept = {name: value for name, value in settings.items() if name not in (*CHOICES, "recipe")}
    return {**kept, **plain(config.recipe)}


def outline(config: Config) -> str:
    """What a run of this configuration is about to do.

    Raises:
        InputError: see `settled`.
    """
    config = settled(config)
    model = find_model(config.model, config.device, config.recipe.size or None)
    there = {
        (row["regime"], row["arm"], row["lr_factor"], row["seed"], row["step"])
        for row in rows(config.folder / "convergence.csv", config.fresh)
        if row["metric"] == REWARD
    }
    runs = planned(config)
    left = [
        run
        for run in runs
        if (*(format_value(v, type(v)) for v in run), str(run.steps(config.steps))) not in there
    ]
    forwards = 0.0
    for run in left:
        recipe = REGIMES[run.regime].change(config.recipe)
        forwards += run.steps(config.steps) * recipe.prompts * recipe.images * recipe.exact_step_cost
    done = len(runs) - len(left)
    return announce(model, config.algorithm, "training runs", done, len(left), forwards)
