"""Finding a model by name and choosing its adapter by the pipeline class in its model_index.json."""

from __future__ import annotations

import importlib
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from repro.errors import InputError
from repro.hub import download, first_line, locate, no_progress_bars
from repro.models.base import Backbone

# model_index.json's _class_name -> module and class of the adapter
FAMILIES = {
    "FluxPipeline": ("repro.models.flux", "Flux"),
    "QwenImagePipeline": ("repro.models.qwen_image", "QwenImage"),
}
CARD = "repro_card.json"


def load(
    model: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    height: int | None = None,
    width: int | None = None,
) -> Backbone:
    """Load a backbone of any supported family.

    Args:
        model: a bundled name ("tiny-flux"), a diffusers folder, or a hub id ("Qwen/Qwen-Image").
        dtype: of all weights.
        device: where to put them.
        height, width: image size; by default the card's (bundled models) or the pipeline's own.

    Raises:
        ValueError: in one line, what is wrong with `model` and what to do.
    """
    folder = locate(model, "model")
    source = str(model) if folder is None else str(folder)
    index_file = download(source, "model_index.json") if folder is None else folder / "model_index.json"
    if not index_file.exists():
        raise InputError(f"{model} is no diffusers folder: it has no model_index.json")
    index = _read_json(index_file)
    name = index.get("_class_name")
    if name not in FAMILIES:
        raise InputError(f"{model} is a {name}: supported are {', '.join(FAMILIES)}")
    module, attribute = FAMILIES[name]
    family: type[Backbone] = getattr(importlib.import_module(module), attribute)
    card = _read_json(folder / CARD) if folder and (folder / CARD).exists() else {}
    try:
        with no_progress_bars() if card else nullcontext():
            pipeline = family.pipeline_class().from_pretrained(
                source, dtype=dtype, local_files_only=folder is not None, use_safetensors=True
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"cannot load {model} as a {name}: {first_line(error)}") from error
    side = pipeline.default_sample_size * pipeline.vae_scale_factor
    backbone = family(
        pipeline,
        name=Path(str(model)).name,
        height=height or card.get("height", side),
        width=width or card.get("width", side),
        max_sequence_length=card.get("max_sequence_length", 512),  # the default of both pipelines' calls
    )
    return backbone.to(device)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
