"""Does JAGG's reward follow the exact baseline's? One training run per cell: arm, learning rate, seed.

Three tables are written, all keyed by cell and step:

* ``convergence.csv``: evaluations every few steps (`experiments.convergence.evaluation`), a row per metric;
* ``convergence-training.csv``: what every training step saw (`repro.training.metrics`);
* ``convergence-timings.csv``: its seconds per phase, apart, so that the other two are the same in every run.

Cells resume one by one, a cell from its last checkpoint. What chooses cells (arms, regimes, seeds, learning
rates) is no part of the tables' identity: later sessions add cells to the same tables.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.common.inputs import Model, load_model, load_prompts, load_scorer
from experiments.convergence.arms import ArmName, Cell, RegimeName, arms_of, plan_cells
from experiments.convergence.evaluation import Evaluator, load_evaluation_prompts
from experiments.convergence.figure import plot, show
from experiments.convergence.start import BUNDLED_NOISE, check_noise
from experiments.convergence.training import (
    CELL,
    COLUMNS,
    TIMING_COLUMNS,
    TRAINING_COLUMNS,
    Tables,
    Work,
    states_folder,
    train_cell,
)
from repro import zoo
from repro.console import progress
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.provenance import collect, plain
from repro.rewards import load as load_reward
from repro.rewards import local_path
from repro.shared_table import SharedTable
from repro.training import logs
from repro.training.overrides import Overrides, override
from repro.training.recipe import Algorithm, Recipe, preset
from repro.training.validation import validate_ranks

__all__ = ["Config", "plot", "run", "train_cells"]

TABLES: dict[str, tuple[dict[str, type], tuple[str, ...]]] = {
    "convergence": (COLUMNS, (*CELL, "step", "metric")),
    "convergence-training": (TRAINING_COLUMNS, (*CELL, "step")),
    "convergence-timings": (TIMING_COLUMNS, (*CELL, "step")),
}
MERGED_FOLDERS = ("samples", "policies")

CHOICES = ("arms", "regimes", "lr_factors", "seeds", "fewer_seeds", "checkpoint_every", "log", "save")
"""Fields of the configuration that choose cells, or leave their results as they are."""


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


def run(config: Config, ranks: Ranks = ALONE) -> Path:
    """Train the cells that are missing; returns the CSV of evaluations.

    Raises:
        ValueError: settings that contradict each other or do not divide over the ranks, or a model, scorer or
            prompts that cannot be loaded.
    """
    csv = train_cells(config, ranks)
    ranks.on_main(show, csv)
    return csv


def train_cells(config: Config, ranks: Ranks = ALONE) -> Path:
    """`run`, without printing."""
    config = _quick(config) if config.quick else config
    logs.check(config.log)
    if config.train_prompts < 0:
        raise InputError(f"train_prompts is {config.train_prompts}, expected 0, for all, or more")
    for name in ("eval_prompts", "eval_images"):
        if getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}, expected at least 1")
    prompts = load_prompts(config.prompts_file, config.train_prompts or None, config.seed)
    eval_prompts = load_evaluation_prompts(config.eval_prompts_file, config.eval_prompts)
    model = load_model(config.model, config.device)
    scorer, reward = load_scorer(config.reward, model)
    noise = config.start_noise
    if noise is None:
        noise = BUNDLED_NOISE if model.small else 0.0
    config = replace(
        config,
        reward=reward,
        eval_rewards=_eval_rewards(config, reward),
        start_noise=check_noise(noise),
    )
    base = override(preset(config.algorithm, bundled=model.small), config.recipe)
    cells = _cells(config, base, ranks)
    others = [load_reward(spec, config.device) for spec in config.eval_rewards]
    evaluator = Evaluator(eval_prompts, config.eval_images, scorer, others, ranks)
    folder = results_folder(config, model)
    provenance = collect(
        _identity(config, base),
        seed=config.seed,
        checkpoint=model.path,
        scorer=local_path(reward),
        prompts=[*prompts, *eval_prompts.texts],
        device=config.device,
        ranks=ranks.size,
    )
    with ExitStack() as stack:

        def table(name: str, columns: dict[str, type], key: tuple[str, ...]) -> SharedTable:
            path, settings = folder / f"{name}.csv", {"provenance": provenance, "fresh": config.fresh}
            return stack.enter_context(SharedTable(ranks, path, columns, key, **settings))

        tables = Tables(*(table(name, *layout) for name, layout in TABLES.items()))
        if config.fresh:  # only now that the tables are locked
            for old in (states_folder(folder), folder / "samples", folder / "policies", folder / "logs"):
                ranks.on_main(shutil.rmtree, old, ignore_errors=True)
        work = Work(config, base, model, scorer, prompts, evaluator, tables, provenance, ranks)
        missing = [cell for cell in cells if not work.done(cell, cell.steps(config.steps))]
        if config.save:
            _require_policies(work, [cell for cell in cells if cell not in missing])
        total = sum(cell.steps(config.steps) for cell in cells)
        left = sum(cell.steps(config.steps) for cell in missing)
        with progress(f"convergence {folder.name}", total, total - left) as advance:
            for cell in missing:
                train_cell(work, cell, advance)
        ranks.on_main(_clear_states, states_folder(folder), cells)
    return folder / "convergence.csv"


def _require_policies(work: Work, trained: list[Cell]) -> None:
    """Refuse to save what was trained before: the weights are gone."""
    for cell in trained:
        if not work.ranks.on_main(work.policy_folder(cell).is_dir):
            raise InputError(
                f"{cell.name} was trained without --save, its policy is gone: pass --fresh to train "
                "everything again, or another --out"
            )


def _clear_states(folder: Path, cells: list[Cell]) -> None:
    """Delete what is left of finished cells: a run may be killed between its last evaluation and its end."""
    for cell in cells:
        shutil.rmtree(folder / cell.name, ignore_errors=True)
    if not any(path.is_dir() for path in folder.glob("*")):
        shutil.rmtree(folder, ignore_errors=True)


def results_folder(config: Config, model: Model) -> Path:
    """Of a model under an algorithm, such as results/tiny-flux-dance_grpo."""
    return (config.out or Path("results/quick" if config.quick else "results")) / (
        f"{model.name}-{config.algorithm}"
    )


def _quick(config: Config) -> Config:
    arms: tuple[ArmName, ...] = ("exact", "jagg", "endpoints-own", "subset")
    return replace(
        config,
        arms=config.arms or arms,
        seeds=min(config.seeds, 2),
        steps=min(config.steps, 6),
        evaluate_every=min(config.evaluate_every, 3),
        eval_prompts=min(config.eval_prompts, 8),
        eval_images=min(config.eval_images, 2),
        recipe=override(Overrides(prompts=2), config.recipe),
    )


def _eval_rewards(config: Config, reward: str) -> tuple[str, ...]:
    bundled = tuple(zoo.EVALUATION_SCORERS) if reward == zoo.TRAINING_SCORER else ()
    return config.eval_rewards or bundled


def _cells(config: Config, base: Recipe, ranks: Ranks) -> list[Cell]:
    """What is asked for, each cell's recipe validated before anything is loaded or trained."""
    known = arms_of(config.algorithm)
    if unknown := [arm for arm in config.arms if arm not in known]:
        raise InputError(f"{config.algorithm} has no arm {unknown[0]}, expected some of {', '.join(known)}")
    if config.recipe.scheme is not None or config.recipe.subset_steps is not None:
        raise InputError("--scheme and --subset-steps are what the arms differ in: choose some with --arms")
    for name in ("regimes", "lr_factors"):
        if not getattr(config, name):
            raise InputError(f"{name} is empty, expected at least one")
    for name in ("steps", "evaluate_every", "checkpoint_every", "seeds", "fewer_seeds"):
        if getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}, expected at least 1")
    cells = plan_cells(
        config.regimes,
        config.arms or known,
        config.lr_factors,
        config.seed,
        config.seeds,
        config.fewer_seeds,
    )
    for cell in cells:
        validate_ranks(cell.recipe(base), ranks)
    return cells


def _identity(config: Config, base: Recipe) -> dict[str, Any]:
    """The settings that a row depends on besides its own cell: the baseline's recipe and the rest."""
    settings = {k: v for k, v in plain(config).items() if k not in (*CHOICES, "recipe")}
    return {**settings, **plain(base)}
