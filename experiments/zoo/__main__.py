"""``python -m experiments.zoo NAME``: build a bundled component, or ``all`` of them, resuming what was begun.

Order and times on two cores: autoencoders 25 minutes each, scorers 10 minutes each, transformers about an
hour each (one thread a process).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from diffusers import FluxPipeline
from torch import nn

from experiments.zoo import data, dit, evaluate, export, scorers, vae
from experiments.zoo.tokenizers import build_clip_tokenizer
from repro import rewards, zoo
from repro.provenance import checkpoint_sha256

Name = Literal[
    "emoji", "tiny-hpsv2", "tiny-pickscore", "tiny-clipscore", "tiny-flux", "tiny-qwen-image", "all"
]
VAE_STEPS, VAE_BATCH, VAE_LR = 1400, 16, 2e-3
DIT_STEPS = {"tiny-flux": 4000, "tiny-qwen-image": 8800}
DIT_CYCLES = {"tiny-flux": 1, "tiny-qwen-image": 2}
DIT_BATCH, DIT_LR = 64, 1.5e-3
GUIDANCE = 3.0
SNAPSHOTS = {"tiny-flux": (400, 1000, 2200), "tiny-qwen-image": ()}


@dataclass(frozen=True)
class Build:
    """Where things are read and written."""

    name: tyro.conf.Positional[Name]
    """what to build"""
    work: Path = Path("runs/zoo")
    """training state, to resume from"""
    emoji: Path = Path("runs/emoji")
    """the pictures' packages, fetched from npm unless there"""
    out: Path = zoo.FOLDER
    """where finished components go"""
    threads: int = 1
    """CPU threads"""


def main() -> None:
    build = tyro.cli(Build, prog="python -m experiments.zoo", description=__doc__)
    torch.set_num_threads(build.threads)
    pictures = data.load(build.emoji)
    names = BUILDERS if build.name == "all" else (build.name,)
    for name in names:
        BUILDERS[name](build, pictures)


def _command(name: str) -> str:
    return f"python -m experiments.zoo {name}"


def build_emoji(build: Build, pictures: data.Pictures) -> None:
    export.save_prompts(pictures, build.out / "emoji")


def build_hpsv2(build: Build, pictures: data.Pictures) -> None:
    _build_scorer(build, pictures, "tiny-hpsv2", 0, 11, scorers.open_clip_dual, export.save_open_clip_scorer)


def build_pickscore(build: Build, pictures: data.Pictures) -> None:
    _build_scorer(
        build, pictures, "tiny-pickscore", 1, 12, scorers.transformers_dual, export.save_clip_scorer
    )


def build_clipscore(build: Build, pictures: data.Pictures) -> None:
    _build_scorer(
        build, pictures, "tiny-clipscore", 1, 13, scorers.transformers_dual, export.save_clip_scorer
    )


def _build_scorer(
    build: Build,
    pictures: data.Pictures,
    name: str,
    side: int,
    seed: int,
    network: Callable[[Any], nn.Module],
    save: Callable[[Any, Any, Path], None],
) -> None:
    torch.manual_seed(seed)
    captions = pictures.select(fonts=data.FONTS).captions
    tokenizer = build_clip_tokenizer(captions, scorers.VOCABULARY, scorers.CONTEXT)
    dual = network(tokenizer)
    own = pictures.where(lambda font, name: data.side(font, name) == side)
    strange = pictures.where(lambda font, name: data.side(font, name) != side).select(fonts=data.FONTS)
    losses = scorers.train_scorer(dual, tokenizer, own, build.work / name, seed)
    dual.eval()
    facts = {
        "side": side,
        "pictures": len(own),
        "steps": {"images": scorers.IMAGE_STEPS, "texts": scorers.TEXT_STEPS},
        "batch": scorers.BATCH,
        "seed": seed,
        "command": _command(name),
        "final": losses,
        "accuracy_among_100": {
            "pictures of its training": scorers.accuracy_among(dual, tokenizer, own.select(fonts=data.FONTS)),
            "pictures it never saw": scorers.accuracy_among(dual, tokenizer, strange),
        },
    }
    save(dual, tokenizer, build.out / name)
    note = (
        "A small CLIP model that learned emoji pictures and their names, to stand in for its big namesake. "
        "Training scorer and evaluation scorers learned from disjoint pictures (`experiments.zoo.data.side`)."
    )
    export.write_card(build.out / name, name, facts, [note])
    print(name, facts["accuracy_among_100"], file=sys.stderr)


def build_flux(build: Build, pictures: data.Pictures) -> None:
    _build_model(build, pictures, "tiny-flux", vae.flux_vae, dit.flux_pipeline)


def build_qwen_image(build: Build, pictures: data.Pictures) -> None:
    _build_model(build, pictures, "tiny-qwen-image", vae.qwen_vae, dit.qwen_pipeline)


def _build_model(
    build: Build,
    pictures: data.Pictures,
    name: str,
    autoencoder: Callable[[], Any],
    pipeline: Callable[[Any, tuple[str, ...]], Any],
) -> None:
    pictures = pictures.select(fonts=data.FONTS)
    seen = pictures.select(splits=("train", "eval"))
    torch.manual_seed(0)
    network = autoencoder()
    known = pictures.select(splits=("train", "eval", "extra"))
    losses = vae.train_vae(network, known, build.work / f"{name}-vae", VAE_STEPS, VAE_BATCH, VAE_LR)
    pipe = pipeline(network.eval().requires_grad_(False), pictures.captions)
    common = {
        "height": data.SIZE,
        "width": data.SIZE,
        "command": _command(name),
        "pictures": len(seen),
        "batch": DIT_BATCH,
        "seed": 2,
        "vae": {"steps": VAE_STEPS, "batch": VAE_BATCH, "seed": 1, "final": losses},
    }
    if isinstance(pipe, FluxPipeline):  # Qwen-Image pads to the longest prompt instead
        common["max_sequence_length"] = dit.MAX_SEQUENCE_LENGTH
    trained = dit.train_dit(
        pipe,
        seen,
        build.work / name,
        DIT_STEPS[name],
        DIT_BATCH,
        DIT_LR,
        snapshots=SNAPSHOTS[name],
        cycles=DIT_CYCLES[name],
    )
    facts = {
        **common,
        "training_steps": DIT_STEPS[name],
        "learning_rate_cycles": DIT_CYCLES[name],
        "final": trained,
    }
    export.save_pipeline(pipe, build.out / name)
    _judge(build.out / name, name, facts, pictures)
    _save_snapshots(build, name, pipe, common)


def _save_snapshots(build: Build, name: str, pipe: Any, common: dict[str, Any]) -> None:
    """Earlier states as complete folders in the work folder, for the cosine against training length."""
    for steps in SNAPSHOTS[name]:
        folder = build.work / f"{name}-step-{steps}"
        state = torch.load(build.work / name / f"snapshot-{steps}.pt", weights_only=True)
        dit.trainable(pipe).float().load_state_dict(state)
        export.save_pipeline(pipe, folder)
        facts = {**common, "training_steps": steps}
        export.write_card(folder, folder.name, facts, ["A snapshot of training."])


def _judge(folder: Path, name: str, facts: dict[str, Any], pictures: data.Pictures) -> None:
    """Sample from what was stored with the stock pipeline, score it, and write the card."""
    loader = FluxPipeline if name == "tiny-flux" else dit.QwenImagePipeline
    pipe = loader.from_pretrained(folder)
    results: dict[str, Any] = {}
    sheet = None
    for split in ("eval", "train", "unseen"):
        some = pictures.select(splits=[split])
        if split == "train":
            some = some.every(8)
        drawn = evaluate.sample(pipe, some.captions)
        again = evaluate.reconstruct(pipe.vae, some.images)
        results[f"{split}_reconstruction_l1"] = float((again - some.images).abs().mean())
        guided = evaluate.sample(pipe, some.captions, guidance=GUIDANCE) if split == "eval" else None
        for spec in zoo.EVALUATION_SCORERS:
            scorer = rewards.load(spec, "cpu")
            results[f"{split}_{spec.split(':')[1]}"] = evaluate.scores(scorer, some, again, drawn)
            if guided is not None:
                shares = evaluate.scores(scorer, some, again, guided)
                results[f"{split}_{spec.split(':')[1]}"]["share_guided_samples"] = shares["share_samples"]
        if split == "eval":
            few = torch.arange(24) * len(some) // 24
            sheet = evaluate.contact_sheet(some.take(few.tolist()), drawn[few])
    notes = [
        f"A {type(pipe).__name__} small enough to train and fine-tune on two cores: the real architecture, "
        "emoji for pictures. Load it with `from_pretrained` and call it with height=64, width=64"
        + (f", max_sequence_length={dit.MAX_SEQUENCE_LENGTH}." if name == "tiny-flux" else "."),
        "",
        "Prompts are a font's word and a name: `noto red apple`, `twemoji dog face`.",
        "",
        "`share_samples` is how far samples are from shuffled prompts (0) to the real pictures (1), on an "
        "evaluation scorer that had no part in training; `share_reconstructions` the same for the "
        "autoencoder alone. Samples are drawn without guidance, guided ones with `true_cfg_scale` "
        f"{GUIDANCE:g} and an empty negative prompt.",
    ]
    judges = {spec: checkpoint_sha256(zoo.FOLDER / spec.split(":")[1]) for spec in zoo.EVALUATION_SCORERS}
    export.write_card(folder, name, {**facts, "evaluation": results, "judges_sha256": judges}, notes, sheet)
    for key, value in results.items():
        print(name, key, value, file=sys.stderr)


BUILDERS: dict[str, Callable[[Build, data.Pictures], None]] = {
    "emoji": build_emoji,
    "tiny-hpsv2": build_hpsv2,
    "tiny-pickscore": build_pickscore,
    "tiny-clipscore": build_clipscore,
    "tiny-flux": build_flux,
    "tiny-qwen-image": build_qwen_image,
}

if __name__ == "__main__":
    main()
