"""How close each scheme's gradient is to the exact one, group by group: the paper's cosine table.

One batch of prompts is sampled, scored and turned into advantages; then, for every group of steps, all
products J_a^T s_j that any scheme needs are measured once (`repro.similarity`), and every scheme's cosine
follows from their inner products. A *setting* changes one thing against the base (the paper's): eta, W, the
cut into groups, the shift of the schedule, the precision. Each is measured for

- ``sample``: single images,
- ``prompt``: one prompt's images together,
- ``batch``: all prompts together, with ``batch-without`` one block of them, for the jackknife's interval.

The training-length panel compares models: run this on earlier snapshots, one results folder a model.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from experiments import cosine_report
from experiments.inputs import load_model, load_prompts, load_scorer
from repro.backbones import Backbone, bind
from repro.console import note, progress
from repro.experience import Experience, gather
from repro.groups import Groups, equal_span_groups, equal_step_groups
from repro.grpo import ClippedSurrogate
from repro.provenance import collect
from repro.results import Table
from repro.rollout import reindex
from repro.scheme import Reading, Scheme, Weighting, endpoints_only, jagg
from repro.sde import Dance, shifted_sigmas
from repro.similarity import GroupProducts, gradient_products, similarity

plot = cosine_report.plot
SettingName = Literal[
    "base", "eta-0.1", "eta-0.7", "eta-1", "W-5", "W-10", "equal-span", "shift-1", "bfloat16"
]


@dataclass(frozen=True)
class Config:
    """The cosine table's settings; defaults are the paper's and the early code's."""

    model: str = "tiny-flux"
    """bundled model (tiny-flux, tiny-qwen-image), diffusers folder, or hub id"""
    quick: bool = False
    """the base setting on 4 prompts, into results/quick"""
    settings: tuple[SettingName, ...] = (
        "base",
        "eta-0.1",
        "eta-0.7",
        "eta-1",
        "W-5",
        "W-10",
        "equal-span",
        "shift-1",
        "bfloat16",
    )
    """which variations to measure; each differs from the base in one thing"""
    prompts: int = 16
    """prompts in the batch"""
    images: int = 12
    """images per prompt"""
    samples: int = 2
    """images per prompt that are also measured one by one, in the base setting"""
    sampling_steps: int = 21
    """sampling steps; the last one is not trained"""
    group_size: int = 4
    """W, steps per group"""
    shift: float = 3.0
    """shift of the noise schedule"""
    eta: float = 0.3
    """noise of DanceGRPO's SDE"""
    guidance: float = 1.0
    """true classifier-free guidance, 1 for none"""
    reward: str | None = None
    """scorer: hpsv2:PATH, pickscore:PATH, clipscore:PATH or module:function; bundled models have their own"""
    prompts_file: Path | None = None
    """prompts, one a line; the bundled training prompts unless given"""
    parameters: str = ""
    """regular expression: only transformer parameters whose name it matches (for models too large for all)"""
    size: int | None = None
    """height and width in pixels; the model's own unless given"""
    device: str = "cpu"
    """torch device"""
    seed: int = 0
    """of prompts and noise"""
    out: Path | None = None
    """results folder; results, or results/quick"""
    fresh: bool = False
    """measure everything again instead of resuming"""


@dataclass(frozen=True)
class Setting:
    """One row block of the table: everything that may differ from the base."""

    name: str
    eta: float
    group_size: int
    shift: float
    equal_span: bool = False
    dtype: torch.dtype = torch.float32

    def groups(self, sigmas: Tensor) -> Groups:
        """The cut of the trained steps: all but the last of the S + 1 ``sigmas``' steps."""
        n_steps = len(sigmas) - 2
        if self.equal_span:
            return equal_span_groups(sigmas[:-1], n_steps // self.group_size)
        return equal_step_groups(n_steps, self.group_size)


COLUMNS: dict[str, type] = {
    "model": str,
    "training_steps": int,
    "setting": str,
    "eta": float,
    "shift": float,
    "dtype": str,
    "group": int,
    "first_step": int,
    "steps": int,
    "sigma_first": float,
    "sigma_last": float,
    "sigma_span": float,
    "scheme": str,
    "unit": str,
    "unit_id": str,
    "images": int,
    "cosine": float,
    "middle_cosine": float,
    "norm_ratio": float,
    "relative_error": float,
}
KEY = ("setting", "group", "scheme", "unit", "unit_id")
JACKKNIFE_BLOCKS = 8


def run(config: Config) -> Path:
    """Measure what is missing of the table; returns the CSV.

    Raises:
        ValueError: a setting that does not fit, or a model, reward or prompts that cannot be loaded.
    """
    if config.quick:
        config = replace(config, settings=("base",), prompts=4, samples=1)
    settings = _settings(config)
    prompts = load_prompts(config.prompts_file, config.prompts, config.seed)
    model = load_model(config.model, config.device, config.size)
    scorer, reward = load_scorer(config.reward, model)
    config = replace(config, reward=reward)
    folder = (config.out or Path("results/quick" if config.quick else "results")) / model.name
    provenance = collect(config, seed=config.seed, checkpoint=model.path, device=config.device)
    with Table(folder / "cosine.csv", COLUMNS, KEY, provenance=provenance, fresh=config.fresh) as table:
        missing = {
            s: [g for g in range(len(s.groups(_sigmas(config, s)))) if not _done(table, s, g)]
            for s in settings
        }
        total = sum(len(s.groups(_sigmas(config, s))) for s in settings) * config.prompts
        left = sum(map(len, missing.values())) * config.prompts
        with progress(f"cosine {model.name}", total, total - left) as advance:
            for setting in settings:
                if not missing[setting]:
                    continue
                backbone = model.backbone(setting.dtype)
                sigmas = _sigmas(config, setting)
                batch = gather(
                    backbone,
                    scorer,
                    prompts,
                    images_per_prompt=config.images,
                    sigmas=sigmas,
                    kernel=Dance(setting.eta),
                    seed=config.seed,
                    guidance=config.guidance,
                )
                experiences = []
                for experience in batch:
                    experiences.append(experience)
                    advance(0, note=f"{setting.name}: sampling {len(experiences)}/{config.prompts}")
                _check_rewards(experiences)
                for g in missing[setting]:
                    rows = list(_measure(config, setting, backbone, experiences, sigmas, g, advance))
                    common = {"model": model.name, "training_steps": model.training_steps}
                    table.append(*({**common, **row} for row in rows))
    cosine_report.show(folder / "cosine.csv")
    return folder / "cosine.csv"


def _sigmas(config: Config, setting: Setting) -> Tensor:
    return shifted_sigmas(config.sampling_steps, setting.shift)


def _settings(config: Config) -> list[Setting]:
    base = Setting("base", config.eta, config.group_size, config.shift)
    variations = {
        "base": base,
        "eta-0.1": replace(base, eta=0.1),
        "eta-0.7": replace(base, eta=0.7),
        "eta-1": replace(base, eta=1.0),
        "W-5": replace(base, group_size=5),
        "W-10": replace(base, group_size=10),
        "equal-span": replace(base, equal_span=True),
        "shift-1": replace(base, shift=1.0),
        "bfloat16": replace(base, dtype=torch.bfloat16),
    }
    if config.prompts < 2 or not 0 <= config.samples <= config.images:
        raise ValueError(
            f"prompts is {config.prompts} and samples {config.samples}: take 2 or more prompts, and at most "
            f"{config.images} (images) samples"
        )
    if config.eta <= 0:
        raise ValueError(f"eta is {config.eta:g}: without noise a transition has no density; take it above 0")
    chosen = [replace(variations[name], name=name) for name in dict.fromkeys(config.settings)]
    for setting in chosen:
        setting.groups(shifted_sigmas(config.sampling_steps, setting.shift))  # refuse before loading a model
    return chosen


def _schemes(times: Tensor, groups: Groups) -> list[Scheme]:
    return [
        *(jagg(times, groups, weighting) for weighting in get_args(Weighting)),
        *(endpoints_only(times, groups, reading) for reading in get_args(Reading)),
    ]


def _done(table: Table, setting: Setting, group: int) -> bool:
    return table.has(setting=setting.name, group=group, scheme="jagg-time", unit="batch", unit_id="all")


def _check_rewards(experiences: list[Experience]) -> None:
    silent = sum(not bool(e.advantages.any()) for e in experiences)
    if silent == len(experiences):
        raise ValueError(
            "all images of every prompt have equal rewards, so there is no gradient: use another scorer"
        )
    if silent:
        note(f"cosine: {silent} of {len(experiences)} prompts have equal rewards and no gradient")


def _measure(
    config: Config,
    setting: Setting,
    backbone: Backbone,
    experiences: list[Experience],
    sigmas: Tensor,
    g: int,
    advance: Any,
) -> Iterator[dict[str, Any]]:
    """The rows of one group: prompts, single samples, the batch and its jackknife."""
    n_steps = len(sigmas) - 2
    groups = setting.groups(sigmas)
    group = groups[g]
    times = sigmas[:n_steps]
    schemes = _schemes(times, groups)
    parameters = _parameters(backbone, config.parameters)
    first, last = float(times[group[0]]), float(times[group[-1]])
    common = {
        "setting": setting.name,
        "eta": setting.eta,
        "shift": setting.shift,
        "dtype": str(setting.dtype).removeprefix("torch."),
        "group": g,
        "first_step": group[0],
        "steps": len(group),
        "sigma_first": first,
        "sigma_last": last,
        "sigma_span": first - last,
    }

    def rows(products: GroupProducts, unit: str, unit_id: str, images: int) -> Iterator[dict[str, Any]]:
        gram = products.gram()
        for scheme in schemes:
            values = vars(similarity(gram, scheme))
            yield {
                **common,
                "scheme": scheme.name,
                "unit": unit,
                "unit_id": unit_id,
                "images": images,
                **values,
            }

    blocks: list[GroupProducts] = []
    sizes: list[int] = []
    n_blocks = min(JACKKNIFE_BLOCKS, len(experiences))
    for i, experience in enumerate(experiences):
        products = _products(config, backbone, experience, slice(None), sigmas, group, parameters)
        yield from rows(products, "prompt", str(i), config.images)
        if i < n_blocks:
            blocks.append(products)
            sizes.append(config.images)
        else:
            blocks[i % n_blocks] += products
            sizes[i % n_blocks] += config.images
        if setting.name == "base":
            for b in range(config.samples):
                single = _products(config, backbone, experience, slice(b, b + 1), sigmas, group, parameters)
                yield from rows(single, "sample", f"{i}.{b}", 1)
        advance(1, note=f"{setting.name}: group {g}")
    total = replace(blocks[0], vectors=functools.reduce(torch.add, (block.vectors for block in blocks)))
    yield from rows(total, "batch", "all", sum(sizes))
    for k, block in enumerate(blocks):
        rest = replace(total, vectors=total.vectors - block.vectors)
        yield from rows(rest, "batch-without", str(k), sum(sizes) - sizes[k])


def _products(
    config: Config,
    backbone: Backbone,
    experience: Experience,
    samples: slice,
    sigmas: Tensor,
    group: range,
    parameters: list[Tensor],
) -> GroupProducts:
    n_steps = len(sigmas) - 2
    trajectory = experience.trajectory.samples(samples)
    conditioning = experience.conditioning.index(samples)
    # At the first update after a rollout every ratio is 1, so the clip is inactive whatever its range.
    surrogate = ClippedSurrogate.from_trajectory(
        trajectory, n_steps, experience.advantages[samples], clip_range=0.1
    )
    trained = trajectory.trained(n_steps)
    velocity = reindex(bind(backbone, conditioning, sigmas, config.guidance), n_steps)
    measured = gradient_products(
        velocity, surrogate, trained.latents, [group], parameters, velocities=trained.velocities
    )
    return next(measured)


def _parameters(backbone: Backbone, pattern: str) -> list[Tensor]:
    try:
        chosen: list[Tensor] = [
            p for name, p in backbone.transformer.named_parameters() if re.search(pattern, name)
        ]
    except re.error as error:
        raise ValueError(f"--parameters {pattern!r} is no regular expression ({error})") from None
    if not chosen:
        raise ValueError(f"--parameters {pattern!r} matches no parameter name of the transformer")
    return chosen
