"""What is trained, written as the stock libraries read it, with a card beside it.

Weights are stored in bfloat16 (a text encoder's config still says float32, so that loading without a dtype
gives one precision throughout) and the tables of `repro` are measured on what was stored.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxPipeline, QwenImagePipeline
from PIL import Image
from torch import nn
from torchvision.transforms.functional import to_pil_image
from torchvision.utils import make_grid
from transformers import CLIPImageProcessor, CLIPProcessor, CLIPTokenizer

from experiments.zoo.data import FONTS, PACKAGES, SIZE, Pictures
from experiments.zoo.scorers import CONTEXT, MEAN, RESOLUTION, STD, TransformersDual, open_clip_config
from repro.provenance import checkpoint_sha256
from repro.zoo import SHEET_COLUMNS

DATA = f"npm {', '.join(PACKAGES.values())}; {SIZE}x{SIZE} on white; see NOTICE"


def save_pipeline(pipe: FluxPipeline | QwenImagePipeline, folder: Path) -> None:
    """A complete diffusers folder at ``folder``, replacing what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    pipe.to(torch.bfloat16)
    pipe.save_pretrained(folder)
    for config in folder.glob("text_encoder*/config.json"):
        content = json.loads(config.read_text())
        for part in (content, content.get("text_config", {}), content.get("vision_config", {})):
            for key in ("dtype", "torch_dtype"):
                if key in part:
                    part[key] = "float32"
        config.write_text(json.dumps(content, indent=2) + "\n")


def save_open_clip_scorer(model: nn.Module, tokenizer: CLIPTokenizer, folder: Path) -> None:
    """HPSv2's format: a checkpoint with a ``state_dict`` for an open_clip architecture."""
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer.save_pretrained(folder)
    config = {
        "model_cfg": open_clip_config(len(tokenizer)),
        "preprocess_cfg": {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "shortest"},
    }
    config["model_cfg"]["text_cfg"]["hf_tokenizer_name"] = "."
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")
    state = {name: tensor.half() for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state}, folder / "HPS_tiny.pt")


def save_clip_scorer(dual: TransformersDual, tokenizer: CLIPTokenizer, folder: Path) -> None:
    """PickScore's format: a transformers CLIPModel folder with its processor."""
    shutil.rmtree(folder, ignore_errors=True)
    dual.clip.to(torch.bfloat16).save_pretrained(folder)
    size = {"height": RESOLUTION, "width": RESOLUTION}
    images = CLIPImageProcessor(
        size={"shortest_edge": RESOLUTION}, crop_size=size, image_mean=list(MEAN), image_std=list(STD)
    )
    CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    assert tokenizer.model_max_length == CONTEXT


def save_prompts(pictures: Pictures, folder: Path) -> None:
    """The prompts of every split, and the pictures of those that evaluation uses, as one sheet a split."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {s: pictures.select(fonts=FONTS, splits=[s]) for s in ("train", "eval", "unseen")}
    prompts = {split: list(some.captions) for split, some in splits.items()}
    (folder / "prompts.json").write_text(json.dumps(prompts, indent=0) + "\n")
    for split in ("eval", "unseen"):
        grid = make_grid(splits[split].images, nrow=SHEET_COLUMNS, padding=0)
        to_pil_image(grid).save(folder / f"{split}.webp", lossless=True, quality=100, method=6)


def write_card(
    folder: Path, title: str, facts: Mapping[str, Any], notes: Sequence[str], sheet: Image.Image | None = None
) -> None:
    """``repro_card.json`` for programs and README.md for people, saying the same."""
    facts = {**facts, "data": DATA, "sha256": checkpoint_sha256(folder)}
    (folder / "repro_card.json").write_text(json.dumps(facts, indent=2) + "\n")
    lines = [f"# {title}", "", *notes, ""]
    if sheet is not None:
        sheet.save(folder / "sheet.jpg", quality=88)
        lines += ["![real pictures beside samples](sheet.jpg)", ""]
    lines += ["| what | value |", "|---|---|"]
    lines += [f"| {key} | {_cell(value)} |" for key, value in facts.items()]
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
