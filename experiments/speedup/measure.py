"""What JAGG saves of a training step: every scheme timed against the exact gradient, and the cost model
against both.

For a *setting* (`experiments.speedup.config`) the schemes take whole training steps in turn, in one process
and in an order drawn anew each round, so that whatever else the machine does meets them alike; the first
round warms up and is dropped. Exact is timed a second time, under another name: what this null arm seems to
save is the timing's own error. A row of the table is one step: seconds per phase, peak memory, the passes
that were made, and beside them what the cost model predicts for the update from one forward and one backward
measured in the same round.

Several ranks take each step together, on a sharded transformer and a part of the samples; rank 0's clock is
what is written, into a table of their own number.

The updates' laps (`experiments.speedup.laps`) have a table of their own, ``speedup-laps.csv.gz``.

The base setting is the paper's: checkpointing on, all weights, W 4, velocities forwarded again in the update.
The others change one or two things, for the heat map.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from experiments import paper
from experiments.common.fill import fill
from experiments.speedup.analysis import SETTING, laps_path
from experiments.speedup.config import NULL, Arm, Config, Setting, Variation, settings
from experiments.speedup.source import Source, load_source, make_policy
from experiments.speedup.step import NO_RATE, Step, Timing, Unit, without_moments
from repro.console import note
from repro.core.cost import CostModel
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.provenance import collect, cpu_model, plain
from repro.results import Table
from repro.training.metrics import PHASES
from repro.training.policy import Policy
from repro.training.recipe import Recipe, preset
from repro.training.trainer import Trainer, make_optimizer

Wanted: TypeAlias = dict[Setting, list[Arm]]
COLUMNS: dict[str, type] = {
    "model": str,
    "device": str,
    "dtype": str,
    "algorithm": str,
    "checkpointing": bool,
    "weights": str,
    "group_size": int,
    "batch": int,
    "anchor_chunk": int,
    "velocities": str,
    "scheme": str,
    "round": int,
    "samples": int,
    "parts": int,
    "sampling_steps": int,
    "trained_steps": int,
    **{f"{phase}_s": float for phase in PHASES},
    "overhead_s": float,
    "peak_memory": int,
    "forwards": int,
    "recomputes": int,
    "backwards": int,
    "backward_calls": int,
    "forward_s": float,
    "backward_factor": float,
    "predicted_update_s": float,
}
"""Samples are of all ranks, parts (minibatches) of one, counts of one part; ``forward_s`` and
``backward_factor`` are f and b of `experiments.speedup.step`."""
KEY = (*SETTING, "scheme", "round")
LAP_COLUMNS: dict[str, type] = {
    **{name: COLUMNS[name] for name in KEY},
    "repetition": int,
    "lap": int,
    "seconds": float,
    "forward_s": float,
}
LAP_KEY = (*KEY, "repetition", "lap")


def run(config: Config, ranks: Ranks = ALONE) -> Path:
    """Time what is missing of the table; returns the CSV.

    Raises:
        ValueError: a setting that does not fit or does not divide over the ranks, or a model, reward or
            prompts that cannot be loaded.
    """
    config = _quick(config, ranks) if config.quick else config
    if config.rounds < 1:
        raise InputError(f"rounds is {config.rounds}: take 1 or more, 6 for an interval of 95 %")
    for name, least in (("prompts", 1), ("images", 2), ("batch", 0)):
        if getattr(config, name) < least:
            raise InputError(f"{name} is {getattr(config, name)}, expected at least {least}")
    images = len(ranks.parts(config.prompts, config.images, "prompts per step")[0][1])
    wanted = settings(config, ranks.size)
    if uneven := [s.batch for s in wanted if images % s.batch]:
        raise InputError(
            f"{images} images of a prompt do not divide into batches of {uneven[0]}: choose another batch"
        )
    source = load_source(config)
    folder = (config.out or Path("results/quick" if config.quick else "results")) / source.name
    csv = folder / "speedup.csv"
    # Elsewhere, or with other threads or ranks, seconds are others: that is another table.
    place = {"machine": _device_name(config.device), "threads": torch.get_num_threads(), "ranks": ranks.size}
    provenance = collect(
        {**plain(config), **place},
        seed=config.seed,
        checkpoint=source.checkpoint,
        device=config.device,
        ranks=ranks.size,
    )
    written: dict[str, Any] = {"provenance": provenance, "fresh": config.fresh}
    table = ranks.on_main(Table, csv, COLUMNS, KEY, **written)
    laps = ranks.on_main(Table, laps_path(csv), LAP_COLUMNS, LAP_KEY, **written)
    steps = _Steps(config, source, wanted, ranks)

    def measure(unit: tuple[Setting, int], advance: Any) -> None:
        setting, round_ = unit
        with _what_fits(config, source, setting, steps.unfit, ranks):
            rows, of_laps = _round(
                config, source, steps.of(setting), setting, wanted[setting], round_, advance
            )
            name = f"{_note(setting, None)}, round {round_}"
            ranks.on_main(laps.append, *of_laps, unit=name)
            ranks.on_main(table.append, *rows, unit=name)

    fill(
        f"speedup {source.name}",
        [(setting, round_) for setting in wanted for round_ in range(config.rounds)],
        folder=folder,
        name=lambda unit: f"{_note(unit[0], None)}-{unit[0].anchor_chunk}-{unit[0].velocities}-{unit[1]}",
        done=lambda unit: unit[0] in steps.unfit or table.has(**_key(unit[0], "exact", unit[1])),
        measure=measure,
        size=lambda unit: len(wanted[unit[0]]),
        ranks=ranks,
    )
    if len(steps.unfit) == len(wanted):
        raise InputError(f"nothing was timed: {_advice(config, source, steps.unfit[0])}")
    return csv


class _Steps:
    """The step of the setting that is timed, warmed up; neighbours of one mode share a policy."""

    def __init__(self, config: Config, source: Source, wanted: Wanted, ranks: Ranks) -> None:
        self._config, self._source, self._wanted, self._ranks = config, source, wanted, ranks
        self._mode: tuple[str, bool] | None = None
        self._policy: Policy | None = None
        self._step: tuple[Setting, Step] | None = None
        self.unfit: list[Setting] = []

    def of(self, setting: Setting) -> Step:
        """Made anew where the setting is another than before, and run once with every scheme."""
        if self._step is None or self._step[0] != setting:
            config, ranks, mode = self._config, self._ranks, (setting.weights, setting.checkpointing)
            self._step = None
            recipe = recipe_of(config, setting)
            if self._mode != mode or self._policy is None:
                self._policy = None
                gc.collect()
                if config.device.startswith("cuda"):
                    torch.cuda.empty_cache()
                self._policy, self._mode = make_policy(config, self._source, recipe, ranks), mode
            step = Step(make_trainer(config, self._source, self._policy, recipe, ranks))
            step.unit()
            for arm in self._wanted[setting]:
                step.time(under(recipe, arm), repeat=False)
            self._step = setting, step
        return self._step[1]


def _quick(config: Config, ranks: Ranks) -> Config:
    quick: tuple[Variation, ...] = ("base", "checkpointing")
    return replace(
        config,
        variations=quick if config.variations == Config.variations else config.variations,
        rounds=min(config.rounds, 3),
        prompts=min(config.prompts, ranks.size),
    )


def _key(setting: Setting, scheme: str, round_: int) -> dict[str, Any]:
    return {**vars(setting), "scheme": scheme, "round": round_}


@contextmanager
def _what_fits(
    config: Config, source: Source, setting: Setting, unfit: list[Setting], ranks: Ranks
) -> Iterator[None]:
    """Go on without a setting that does not fit in memory. Several ranks stop: only one may have noticed."""
    try:
        yield
    except torch.OutOfMemoryError:
        advice = _advice(config, source, setting)
        if ranks.size > 1:
            raise InputError(advice) from None
        note(f"speedup: left out, as {advice}")
        unfit.append(setting)


def _advice(config: Config, source: Source, setting: Setting) -> str:
    return (
        f"{source.name} does not fit on {config.device} ({_note(setting, None)}): lower --prompts, "
        "--batch or --size, pass --no-optimizer, or time LoRA alone with --variations weights"
    )


def recipe_of(config: Config, setting: Setting) -> Recipe:
    """The preset in a setting's mode, weights in `config.dtype` as they are."""
    recipe = preset(setting.algorithm)
    return replace(
        recipe,
        size=0,
        precision="float32",
        group_size=setting.group_size,
        window=setting.group_size if recipe.window else 0,
        prompts=config.prompts,
        images=config.images,
        micro_batch=setting.batch,
        anchor_chunk=setting.anchor_chunk,
        velocities=setting.velocities,
        checkpointing=setting.checkpointing,
        lora_rank=config.lora_rank if setting.weights == "lora" else 0,
        learning_rate=NO_RATE,
    )


def under(recipe: Recipe, arm: Arm) -> Recipe:
    """The recipe with an arm's scheme."""
    subset = round(paper.TIMESTEP_FRACTION.low * recipe.n_trained) if arm.scheme == "subset" else 0
    return replace(recipe, scheme=arm.scheme, jagg_frac=arm.jagg_frac, subset_steps=subset)


def scheme_name(recipe: Recipe, arm: Arm) -> str:
    """An arm as the table has it."""
    return NULL if arm.again else under(recipe, arm).full_scheme().name


def make_trainer(config: Config, source: Source, policy: Policy, recipe: Recipe, ranks: Ranks) -> Trainer:
    """The trainer of a recipe whose steps are timed."""
    return Trainer(
        recipe,
        policy,
        source.scorer,
        source.prompts,
        seed=config.seed,
        steps=1,
        ranks=ranks,
        optimizer=make_optimizer if config.optimizer else without_moments,
    )


def _round(
    config: Config,
    source: Source,
    step: Step,
    setting: Setting,
    chosen: list[Arm],
    round_: int,
    advance: Any,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of one round, in which a setting's schemes take turns, and of its laps."""
    trainer, recipe = step.trainer, step.trainer.recipe
    common = {
        "model": source.name,
        "device": _device_name(config.device),
        "dtype": config.dtype,
        "samples": config.prompts * config.images,
        "parts": step.minibatches,
        "sampling_steps": recipe.sampling_steps,
        "trained_steps": len(trainer.noisy),
    }
    unit, rows, laps = step.unit(), [], []
    for arm in turns(chosen, config.seed, setting, round_):
        own, name = under(recipe, arm), scheme_name(recipe, arm)
        timing, overhead = step.time(own), step.overhead(own)
        advance(1, note=_note(setting, name))
        key = _key(setting, name, round_)
        rows.append({**common, **key, **_values(timing, unit, overhead, step.minibatches, setting)})
        laps += [
            {
                **key,
                "repetition": repetition,
                "lap": number,
                "seconds": lap.seconds,
                "forward_s": lap.forward,
            }
            for repetition, of_update in enumerate(timing.laps)
            for number, lap in enumerate(of_update)
        ]
    return rows, laps


def turns(arms: Sequence[Arm], seed: int, setting: Setting, round_: int) -> list[Arm]:
    """The arms in the order of a round, drawn from what it is: who follows whom would show in seconds."""
    return random.Random(f"{seed} {setting} {round_}").sample(arms, len(arms))


def _values(timing: Timing, unit: Unit, overhead: float, parts: int, setting: Setting) -> dict[str, Any]:
    price = CostModel(unit.backward, 1.0 if setting.checkpointing else 0.0).price(timing.counts)
    return {
        **{f"{phase}_s": seconds for phase, seconds in timing.seconds.items()},
        "overhead_s": overhead,
        "peak_memory": timing.peak_memory,
        **timing.counts._asdict(),
        "backward_calls": timing.backward_calls,
        "forward_s": unit.forward,
        "backward_factor": unit.backward,
        "predicted_update_s": parts * unit.forward * price,
    }


def _note(setting: Setting, scheme: str | None) -> str:
    mode = "checkpointing" if setting.checkpointing else "no checkpointing"
    words = [setting.algorithm, mode, setting.weights, f"W {setting.group_size}", f"batch {setting.batch}"]
    return ", ".join([*words, *([scheme] if scheme else [])])


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else cpu_model()
