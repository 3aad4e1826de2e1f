"""What JAGG saves of a training step: every scheme timed against the exact gradient, and the cost model
against both.

For a *setting* (`experiments.speedup.step`) the schemes take whole training steps in turn, A B A B, in one
process, so that whatever else the machine does meets them alike; the first round warms up and is dropped. A
row of the table is one step: seconds per phase, peak memory, the passes that were made, and beside them what
the cost model predicts for the update from one forward and one backward measured in the same round.

Several ranks take each step together, on a sharded transformer and a part of the samples; rank 0's clock is
what is written, into a table of their own number.

The updates' laps (`experiments.speedup.laps`) have a table of their own, ``speedup-laps.csv``.

The base setting is the paper's: checkpointing on, all weights, W 4, velocities forwarded again in the update.
The others change one or two things, for the heat map.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments import paper
from experiments.speedup import report as speedup_report
from experiments.speedup.analysis import SETTING
from experiments.speedup.config import Config, NamedScheme, Variation, settings
from experiments.speedup.laps import laps_path
from experiments.speedup.source import Source, load_source, make_policy
from experiments.speedup.step import PHASES, Setting, Step, Timing, Unit
from repro.console import note, progress
from repro.core.cost import CostModel
from repro.core.schemes import registry
from repro.core.schemes.scheme import Scheme
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.fields import format_value
from repro.provenance import collect, cpu_model, plain
from repro.shared_table import SharedTable
from repro.training.policy import Policy
from repro.training.recipe import Recipe, preset

plot = speedup_report.plot
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
"""Samples are of all ranks, parts of one, counts of one part; ``forward_s`` and ``backward_factor`` are f and
b of `experiments.speedup.step`."""
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
    ranks.parts(config.prompts, config.images, "prompts per step")
    wanted = settings(config, ranks.size)
    samples = config.prompts * config.images // ranks.size
    if uneven := [s.batch for s in wanted if samples % s.batch]:
        raise InputError(f"{samples} samples do not divide into parts of {uneven[0]}: choose another batch")
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
    written = {"provenance": provenance, "fresh": config.fresh}
    with (
        SharedTable(ranks, laps_path(csv), LAP_COLUMNS, LAP_KEY, **written) as laps,
        SharedTable(ranks, csv, COLUMNS, KEY, **written) as table,
    ):
        last = {setting: _key(setting, "exact", config.rounds - 1) for setting in wanted}
        missing = [
            s for s, key in last.items() if not (table.has(**key) and laps.has(**key, repetition=0, lap=0))
        ]
        steps = {setting: (config.rounds + 1) * len(chosen) for setting, chosen in wanted.items()}
        left = sum(steps[setting] for setting in missing)
        unfit: list[Setting] = []
        with progress(f"speedup {source.name}", sum(steps.values()), sum(steps.values()) - left) as advance:
            for mode, group in groupby(missing, key=lambda s: (s.weights, s.checkpointing)):
                policy: Policy | None = None
                for setting in group:
                    with _what_fits(config, source, setting, unfit, ranks):
                        policy = policy or make_policy(config, source, *mode, ranks)
                        for unfinished in (table, laps):
                            unfinished.drop(_rows_of(setting))
                        for rows, of_laps in _measure(
                            config, source, policy, setting, wanted[setting], advance, ranks
                        ):
                            laps.append(*of_laps)
                            table.append(*rows)
                del policy
                gc.collect()
                if config.device.startswith("cuda"):
                    torch.cuda.empty_cache()
    if len(unfit) == len(wanted):
        raise InputError(f"nothing was timed: {_advice(config, source, unfit[0])}")
    ranks.on_main(speedup_report.show, csv)
    return csv


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


def _rows_of(setting: Setting) -> Callable[[dict[str, str]], bool]:
    fields = {name: format_value(value, COLUMNS[name]) for name, value in vars(setting).items()}
    return lambda row: all(row[name] == field for name, field in fields.items())


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


def _recipe(config: Config, setting: Setting) -> Recipe:
    recipe = preset(setting.algorithm)
    window = setting.group_size if recipe.window else 0
    return replace(
        recipe,
        group_size=setting.group_size,
        window=window,
        prompts=config.prompts,
        images=config.images,
        anchor_chunk=setting.anchor_chunk,
        velocities=setting.velocities,
        checkpointing=setting.checkpointing,
    )


def _measure(
    config: Config,
    source: Source,
    policy: Policy,
    setting: Setting,
    chosen: list[NamedScheme],
    advance: Any,
    ranks: Ranks,
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """The rows of one setting, and of its laps, round by round, in which its schemes take turns."""
    recipe = _recipe(config, setting)
    step = Step(policy, source.scorer, source.prompts, recipe, setting, config.seed, config.optimizer, ranks)
    schemes = [_scheme(name, fraction, step.times, setting) for name, fraction in chosen]
    common = {
        "model": source.name,
        "device": _device_name(config.device),
        "dtype": config.dtype,
        "samples": len(step.prompts) * ranks.size,
        "parts": len(step.parts),
        "sampling_steps": recipe.sampling_steps,
        "trained_steps": len(step.noisy),
    }
    for round_ in range(-1, config.rounds):
        unit, rows, laps = step.unit(), [], []
        for scheme in schemes:
            timing, overhead = step.time(scheme, repeat=round_ >= 0), step.overhead(scheme)
            advance(1, note=_note(setting, scheme))
            values = _values(timing, unit, overhead, len(step.parts), setting)
            key = _key(setting, scheme.name, round_)
            rows.append({**common, **key, **values})
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
        if round_ >= 0:  # the first warms up
            yield rows, laps


def _scheme(name: registry.SchemeName, jagg_frac: float, times: Tensor, setting: Setting) -> Scheme:
    subset = round(paper.TIMESTEP_FRACTION.low * len(times))
    generator = torch.Generator().manual_seed(0)
    return registry.build(
        name, times, setting.group_size, jagg_frac=jagg_frac, subset_steps=subset, generator=generator
    )


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


def _note(setting: Setting, scheme: Scheme | None) -> str:
    mode = "checkpointing" if setting.checkpointing else "no checkpointing"
    words = [setting.algorithm, mode, setting.weights, f"W {setting.group_size}", f"batch {setting.batch}"]
    return ", ".join([*words, *([scheme.name] if scheme else [])])


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else cpu_model()
