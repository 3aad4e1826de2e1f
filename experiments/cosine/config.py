"""What the cosine table measures: its configuration, and the variants that vary one thing at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from experiments.common.inputs import announce, find_model, read_prompts, reward_of, rows
from repro.core.schemes.groups import Groups, equal_span_groups, equal_step_groups
from repro.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

VariantName = Literal["base", "eta-0.7", "eta-1", "W-5", "W-10", "equal-span", "shift-1", "bfloat16"]


@dataclass(frozen=True)
class Config:
    """The cosine table's settings; defaults are the paper's and the early code's."""

    model: str = "tiny-flux"
    """bundled model (tiny-flux, tiny-qwen-image), diffusers folder, or hub id"""
    quick: bool = False
    """the base variant on 3 prompts, into results/quick"""
    variants: tuple[VariantName, ...] = get_args(VariantName)
    """which variations to measure; each differs from the base in one thing"""
    prompts: int = 16
    """prompts in the batch"""
    images: int = 12
    """images per prompt"""
    samples: int = 1
    """images per prompt that are also measured one by one"""
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

    @property
    def csv(self) -> Path:
        """The table."""
        folder = self.out or Path("results/quick" if self.quick else "results")
        return folder / find_model(self.model).name / "cosine.csv"


def default(words: Sequence[str]) -> Config:
    """The same for every model."""
    return Config()


def settled(config: Config) -> Config:
    """The configuration as it is run: small where it is a quick one, with its scorer's name.

    Raises:
        InputError: what cannot be run, as far as that can be told without torch.
        FileNotFoundError: no such model.
    """
    model = find_model(config.model)
    if config.quick:
        config = replace(config, variants=("base",), prompts=min(config.prompts, 3), samples=1)
    variants(config)
    read_prompts(config.prompts_file, config.prompts)
    return replace(config, reward=reward_of(config.reward, model))


def outline(config: Config) -> str:
    """What a run of this configuration is about to do.

    Raises:
        InputError: see `settled`.
    """
    config = settled(config)
    model = find_model(config.model, config.device, config.size)
    there = {
        (row["variant"], row["group"])
        for row in rows(config.csv, config.fresh)
        if (row["scheme"], row["unit"]) == ("jagg-time", "batch")
    }
    chosen = variants(config)
    done, left, forwards = 0, 0, 0.0
    for variant in chosen:
        missing = [group for group in range(variant.n_groups) if (variant.name, str(group)) not in there]
        done, left = done + variant.n_groups - len(missing), left + len(missing)
        if missing:
            images = variant.prompts * config.images
            forwards += images * variant.sampling_steps
            # A forward and a backward each J_a^T s_j: both ends with every s_j, middles with theirs.
            products = 3 * variant.group_size - 2
            forwards += len(missing) * (images + variant.prompts * config.samples) * 3 * products
    return announce(model, f"{len(chosen)} variants", "groups of steps", done, left, forwards)


@dataclass(frozen=True)
class Variant:
    """One block of the table: everything that may differ from the base."""

    name: str
    prompts: int
    sampling_steps: int
    eta: float
    group_size: int
    shift: float
    equal_span: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"

    @property
    def dtype(self) -> torch.dtype:
        """Of the network."""
        import torch

        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.precision]

    @property
    def sigmas(self) -> Tensor:
        """(S + 1,), the sampler's noise levels."""
        from repro.core.sde import shifted_sigmas

        return shifted_sigmas(self.sampling_steps, self.shift)

    @property
    def n_groups(self) -> int:
        """Of `groups`."""
        # Five groups of the default's 20 steps could not be made equal (2.1 to 1), four can (1.3 to 1).
        return self.n_steps // self.group_size - self.equal_span

    @property
    def n_steps(self) -> int:
        """Trained steps: all sampling steps but the last."""
        return self.sampling_steps - 1

    @property
    def groups(self) -> Groups:
        """The trained steps, cut into groups."""
        if self.equal_span:
            return equal_span_groups(self.sigmas[: self.n_steps], self.n_groups)
        return equal_step_groups(self.n_steps, self.group_size)


def variants(config: Config) -> list[Variant]:
    """The variants that ``config`` asks for, checked.

    Raises:
        ValueError: one that does not fit.
    """
    if config.prompts < 2 or not 0 <= config.samples <= config.images:
        raise InputError(
            f"prompts is {config.prompts} and samples {config.samples}: take 2 or more prompts, and at most "
            f"{config.images} (images) samples"
        )
    if config.eta <= 0:
        raise InputError(f"eta is {config.eta:g}: without noise a transition has no density; take it above 0")
    base = Variant("base", config.prompts, config.sampling_steps, config.eta, config.group_size, config.shift)
    # On a CPU without hardware for it, bfloat16 is some 40 times slower: two prompts have to do.
    few = min(config.prompts, 2) if config.device == "cpu" else config.prompts
    all_variants = {
        "base": base,
        "eta-0.7": replace(base, eta=0.7),
        "eta-1": replace(base, eta=1.0),
        "W-5": replace(base, group_size=5),
        "W-10": replace(base, group_size=10),
        "equal-span": replace(base, equal_span=True),
        "shift-1": replace(base, shift=1.0),
        "bfloat16": replace(base, precision="bfloat16", prompts=few),
    }
    chosen = [replace(all_variants[name], name=name) for name in dict.fromkeys(config.variants)]
    if not chosen:
        raise InputError(f"--variants names none: pass some of {', '.join(all_variants)}, or leave it out")
    for variant in chosen:
        try:  # before a model is loaded
            equal_step_groups(variant.n_steps, variant.group_size)
        except ValueError as error:
            raise InputError(f"variant {variant.name}: {error}; --variants chooses others") from None
    return chosen
