"""How close each scheme's gradient is to the exact one, group by group: the paper's cosine table.

One batch of prompts is sampled, scored and turned into advantages; then, for every group of steps, all
products J_a^T s_j that any scheme needs are measured once (`repro.core.similarity`), and every scheme's
cosine follows from their inner products. A *variant* changes one thing against the base (the paper's): eta,
W, the cut into groups, the shift of the schedule, the precision. Each is measured for

- ``sample``: single images,
- ``prompt``: one prompt's images together,
- ``batch``: all prompts together, with ``batch-without`` one block of them, for the jackknife's interval.

The training-length panel compares models: run this on earlier snapshots, one results folder a model.

Several ranks share the prompts. Each measures its own prompts' products, on the sharded transformer but not
averaged over the ranks; what is of the whole batch is summed over them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from experiments.common.fill import fill
from experiments.common.inputs import Model, load_model, load_prompts, load_scorer
from experiments.cosine.config import Config, Variant, settled, variants
from repro.console import note
from repro.core.minibatch import Minibatch
from repro.core.schemes.groups import Groups
from repro.core.schemes.jagg import Reading, Weighting, endpoints_only, jagg
from repro.core.schemes.scheme import Scheme
from repro.core.sde import Dance
from repro.core.similarity import GroupProducts, gradient_products, similarity
from repro.distributed import fsdp
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.models import Backbone, bind
from repro.provenance import collect, plain
from repro.results import Table
from repro.rewards import Scorer, local_path
from repro.training.experience import Experience, gather

__all__ = ["Config", "run"]

COLUMNS: dict[str, type] = {
    "model": str,
    "training_steps": int,
    "variant": str,
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
KEY = ("variant", "group", "scheme", "unit", "unit_id")
JACKKNIFE_BLOCKS = 8


def run(config: Config, ranks: Ranks = ALONE) -> Path:
    """Measure what is missing of the table; returns the CSV.

    Raises:
        ValueError: a variant that does not fit or does not divide over the ranks, or a model, reward or
            prompts that cannot be loaded.
    """
    config = settled(config)
    if config.quick:  # 3, or what divides over the ranks
        config = replace(config, prompts=-(-config.prompts // ranks.size) * ranks.size)
    chosen = variants(config)
    for variant in chosen:
        ranks.share(range(variant.prompts), f"prompts of variant {variant.name}")
    prompts = load_prompts(config.prompts_file, config.prompts, config.seed)
    model = load_model(config.model, config.device, config.size)
    scorer, reward = load_scorer(config.reward, model)
    csv = config.csv
    provenance = collect(
        {name: value for name, value in plain(config).items() if name != "variants"},
        seed=config.seed,
        checkpoint=model.path,
        scorer=local_path(reward),
        prompts=prompts,
        device=config.device,
        ranks=ranks.size,
    )
    table = ranks.on_main(Table, csv, COLUMNS, KEY, provenance=provenance, fresh=config.fresh)
    batches = _Batches(config, model, scorer, prompts, ranks)

    def measure(unit: tuple[Variant, int], advance: Any) -> None:
        variant, g = unit
        backbone, experiences = batches.of(variant, advance)
        common = {"model": model.name, "training_steps": model.training_steps}
        rows = _measure(config, variant, backbone, experiences, g, advance, ranks)
        ranks.on_main(table.append, *({**common, **row} for row in rows), unit=_name(unit))

    fill(
        f"cosine {model.name}",
        [(variant, g) for variant in chosen for g in range(len(variant.groups))],
        folder=csv.parent,
        name=_name,
        done=lambda unit: table.has(
            variant=unit[0].name, group=unit[1], scheme="jagg-time", unit="batch", unit_id="all"
        ),
        measure=measure,
        size=lambda unit: unit[0].prompts,
        ranks=ranks,
    )
    return csv


def _name(unit: tuple[Variant, int]) -> str:
    return f"{unit[0].name} group {unit[1]}"


class _Batches:
    """A variant's model and batch, sampled when its first group is measured and kept for the others."""

    def __init__(
        self, config: Config, model: Model, scorer: Scorer, prompts: list[str], ranks: Ranks
    ) -> None:
        self._config, self._model, self._scorer = config, model, scorer
        self._prompts, self._ranks = prompts, ranks
        self._backbone: Backbone | None = None
        self._experiences: list[Experience] = []
        self._of: Variant | None = None

    def of(self, variant: Variant, advance: Any) -> tuple[Backbone, list[Experience]]:
        """The backbone in the variant's precision, and this rank's prompts with their images."""
        if self._of != variant:
            self._experiences = []
            if self._backbone is None or self._of is None or self._of.dtype != variant.dtype:
                self._backbone = None  # frees the one before, or two would be held while loading
                self._backbone = self._model.backbone(variant.dtype)
                if self._ranks.size > 1:
                    fsdp.shard(self._backbone.transformer)
            sampled = gather(
                self._backbone,
                self._scorer,
                self._prompts[: variant.prompts],
                images_per_prompt=self._config.images,
                sigmas=variant.sigmas,
                kernel=Dance(variant.eta),
                seed=self._config.seed,
                guidance=self._config.guidance,
                ranks=self._ranks,
            )
            for experience in sampled:
                self._experiences.append(experience)
                there = len(self._experiences) * self._ranks.size
                advance(0, note=f"{variant.name}: sampling {there}/{variant.prompts}")
            _check_rewards(self._experiences, self._ranks)
            self._of = variant
        assert self._backbone is not None
        return self._backbone, self._experiences


def _schemes(times: Tensor, groups: Groups) -> list[Scheme]:
    return [
        *(jagg(times, groups, weighting) for weighting in get_args(Weighting)),
        *(endpoints_only(times, groups, reading) for reading in get_args(Reading)),
    ]


def _check_rewards(experiences: list[Experience], ranks: Ranks) -> None:
    silent = sum(ranks.gather(sum(not bool(e.advantages.any()) for e in experiences)))
    prompts = len(experiences) * ranks.size
    if silent == prompts:
        raise InputError(
            "all images of every prompt have equal rewards, so there is no gradient: use another scorer"
        )
    if silent:
        note(f"cosine: {silent} of {prompts} prompts have equal rewards and no gradient")


def _measure(
    config: Config,
    variant: Variant,
    backbone: Backbone,
    experiences: list[Experience],
    g: int,
    advance: Any,
    ranks: Ranks,
) -> list[dict[str, Any]]:
    """The rows of one group: prompts, single samples, the batch and its jackknife."""
    group = variant.groups[g]
    times = variant.sigmas[: variant.n_steps]
    schemes = _schemes(times, variant.groups)
    parameters = _parameters(backbone, config.parameters)
    first, last = float(times[group[0]]), float(times[group[-1]])
    common = {
        "variant": variant.name,
        "eta": variant.eta,
        "shift": variant.shift,
        "dtype": str(variant.dtype).removeprefix("torch."),
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

    own: list[dict[str, Any]] = []
    blocks: dict[int, GroupProducts] = {}  # of this rank's prompts
    n_blocks = min(JACKKNIFE_BLOCKS, variant.prompts)
    for i, experience in zip(ranks.share(range(variant.prompts)), experiences, strict=True):
        products = _products(config, backbone, experience, slice(None), variant, group, parameters)
        own += rows(products, "prompt", str(i), config.images)
        if i % n_blocks in blocks:
            blocks[i % n_blocks] += products
        else:
            blocks[i % n_blocks] = products
        for b in range(config.samples):
            single = _products(config, backbone, experience, slice(b, b + 1), variant, group, parameters)
            own += rows(single, "sample", f"{i}.{b}", 1)
        advance(ranks.size, note=f"{variant.name}: group {g}")
    found = [row for part in ranks.gather(own) for row in part]
    vectors = ranks.sum(functools.reduce(torch.add, (blocks[k].vectors for k in sorted(blocks))))
    total, nothing = replace(products, vectors=vectors), torch.zeros_like(vectors)
    images = variant.prompts * config.images
    found += rows(total, "batch", "all", images)
    for k in range(n_blocks):
        block = ranks.sum(blocks[k].vectors if k in blocks else nothing)
        rest = replace(total, vectors=vectors - block)
        left_out = len(range(k, variant.prompts, n_blocks)) * config.images
        found += rows(rest, "batch-without", str(k), images - left_out)
    return found


def _products(
    config: Config,
    backbone: Backbone,
    experience: Experience,
    samples: slice,
    variant: Variant,
    group: range,
    parameters: list[Tensor],
) -> GroupProducts:
    minibatch = Minibatch(
        bind(backbone, experience.conditioning.index(samples), variant.sigmas, config.guidance),
        experience.trajectory.samples(samples),
        variant.n_steps,
        experience.advantages[samples],
        clip_range=0.1,  # right after a rollout every ratio is 1: whatever the range, nothing is clipped
    )
    measured = gradient_products(
        minibatch.velocity,
        minibatch.surrogate,
        minibatch.latents,
        [group],
        parameters,
        velocities=minibatch.rollout.velocities,
    )
    return next(measured)


def _parameters(backbone: Backbone, pattern: str) -> list[Tensor]:
    try:
        chosen: list[Tensor] = [
            p for name, p in fsdp.graph_parameters(backbone.transformer).items() if re.search(pattern, name)
        ]
    except re.error as error:
        raise InputError(f"--parameters {pattern!r} is no regular expression ({error})") from None
    if not chosen:
        raise InputError(f"--parameters {pattern!r} matches no parameter name of the transformer")
    return chosen
