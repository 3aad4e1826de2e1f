"""Finding a model by name and choosing its adapter by the pipeline class in its model_index.json."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from repro.backbones.base import Backbone

# model_index.json's _class_name -> module and class of the adapter
FAMILIES = {
    "FluxPipeline": ("repro.backbones.flux", "Flux"),
    "QwenImagePipeline": ("repro.backbones.qwen_image", "QwenImage"),
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
    folder = _locate(str(model))
    source = str(model) if folder is None else str(folder)
    index = _read_json(folder / "model_index.json") if folder else _download_index(source)
    name = index.get("_class_name")
    if name not in FAMILIES:
        raise ValueError(f"{model} is a {name}: supported are {', '.join(FAMILIES)}")
    module, attribute = FAMILIES[name]
    family: type[Backbone] = getattr(importlib.import_module(module), attribute)
    card = _read_json(folder / CARD) if folder and (folder / CARD).exists() else {}
    try:
        with _no_bars() if card else nullcontext():
            pipeline = family.pipeline_class().from_pretrained(
                source, dtype=dtype, local_files_only=folder is not None
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"cannot load {model} as a {name}: {_first_line(error)}") from error
    side = pipeline.default_sample_size * pipeline.vae_scale_factor
    backbone = family(
        pipeline,
        name=Path(str(model)).name,
        height=height or card.get("height", side),
        width=width or card.get("width", side),
        max_sequence_length=card.get("max_sequence_length", 512),  # the default of both pipelines' calls
    )
    return backbone.to(device)


@contextmanager
def _no_bars() -> Iterator[None]:
    """No progress bars from the two libraries: right for a small model, whose loading takes no time."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    shown = [log for log in (diffusers_logging, transformers_logging) if log.is_progress_bar_enabled()]
    for log in shown:
        log.disable_progress_bar()
    try:
        yield
    finally:
        for log in shown:
            log.enable_progress_bar()


def _locate(model: str) -> Path | None:
    """The local folder that `model` means, or None if it can only be a hub id."""
    from repro import zoo

    bundled = zoo.resolve(model)
    if bundled is not None:
        return bundled
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "model_index.json").exists():
            raise ValueError(f"{model} is no diffusers folder: it has no model_index.json")
        return path
    if path.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        raise ValueError(
            f"no model {model}: pass a bundled name, a diffusers folder or a hub id (owner/name)"
        )
    return None


def _download_index(model: str) -> dict[str, Any]:
    """model_index.json from the hub."""
    from huggingface_hub import hf_hub_download

    try:
        return _read_json(Path(hf_hub_download(model, "model_index.json")))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{model} is no local folder, and the hub gave no model_index.json ({_first_line(error)}): check "
            "the name, the network and, for a gated model, your login (hf auth login)"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
