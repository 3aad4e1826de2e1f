"""HPSv2 and HPSv2.1: human preference, as the cosine of an open_clip model's image and text vectors.

As in the published code (hpsv2's ``score``) the score is the plain cosine, without temperature, and an image
is resized to fit the square, padded with black, then normalised. HPSv2.1 is open_clip's ViT-H-14 with another
state dict, so open_clip's own model class is used and no base model is downloaded first.

A source is one of

- a bare checkpoint (``HPS_v2.1_compressed.pt``): ViT-H-14 and open_clip's tokenizer,
- a hub id whose repository holds that file,
- a folder for another architecture, as open_clip's ``local-dir:`` reads it:

      open_clip_config.json   {"model_cfg": {embed_dim, vision_cfg, text_cfg}, "preprocess_cfg": {mean, std}}
      *.pt                    exactly one, torch.save({"state_dict": model.state_dict()}, ...)
      tokenizer files         tokenizer.save_pretrained(folder), and any text in
                              model_cfg.text_cfg.hf_tokenizer_name to say that they are there

  The token that ends a text must have the highest id: the text tower reads its vector there.

Files are loaded with ``weights_only``, so a checkpoint cannot run code.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from repro.errors import InputError
from repro.hub import download, first_line, locate
from repro.rewards.base import ClipScorer

HUB, FILE, ARCHITECTURE = "xswu/HPSv2", "HPS_v2.1_compressed.pt", "ViT-H-14"


class HPSv2(ClipScorer):
    """See the module; made by `load`."""

    scale = 1.0

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device | str,
    ) -> None:
        super().__init__(name, model, device)
        self.tokenizer = tokenizer
        self.mean, self.std = (torch.tensor(x, device=self.device).view(1, 3, 1, 1) for x in (mean, std))
        size = model.visual.image_size
        self.size: int = size if isinstance(size, int) else size[0]

    def _embed_images(self, images: Tensor) -> Tensor:
        return self.model.encode_image((fit(images, self.size) - self.mean) / self.std)

    def _embed_texts(self, prompts: list[str]) -> Tensor:
        return self.model.encode_text(self.tokenizer(prompts).to(self.device))


def fit(images: Tensor, size: int) -> Tensor:
    """Resize so that the longer side is `size`, and pad the shorter with black on both sides.

    hpsv2's ResizeMaxSize, batched: antialiased bicubic on floats, overshoot kept.
    """
    scale = size / max(images.shape[-2:])
    height, width = (round(side * scale) for side in images.shape[-2:])
    if scale != 1:
        images = functional.interpolate(images, (height, width), mode="bicubic", antialias=True)
    rows, columns = size - height, size - width
    return functional.pad(images, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))


def load(source: str | None = None, device: torch.device | str = "cpu") -> HPSv2:
    """HPSv2 from `source` (see the module), HPSv2.1 from the hub without one.

    Raises:
        ValueError: in one line, what is wrong with the source.
    """
    import open_clip

    source = source or HUB
    path = locate(source, "HPSv2 checkpoint")
    if path is None:
        path = download(source, FILE)
    if path.is_dir():
        architecture = f"local-dir:{path}"
        config = _read_config(path)
        model_config, preprocess = config["model_cfg"], config.get("preprocess_cfg", {})
        checkpoint = _only_checkpoint(path)
    else:
        architecture, preprocess, checkpoint = ARCHITECTURE, {}, path
        model_config = open_clip.get_model_config(architecture)
    state = _read_state_dict(checkpoint)
    try:
        with torch.device("meta"):  # shapes alone: ViT-H-14 takes long to initialise, so first see if it fits
            _check_keys(open_clip.CLIP(**model_config), state, checkpoint)
    except TypeError as error:
        raise InputError(f"{path}: model_cfg is not one of open_clip's CLIP ({first_line(error)})") from error
    with torch.device(device):
        model = open_clip.CLIP(**model_config)
    model.load_state_dict(state)
    try:
        tokenizer = open_clip.get_tokenizer(architecture)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} has no tokenizer that loads: {first_line(error)}") from error
    return HPSv2(
        f"hpsv2:{Path(source).name}",
        model,
        tokenizer,
        preprocess.get("mean", open_clip.OPENAI_DATASET_MEAN),
        preprocess.get("std", open_clip.OPENAI_DATASET_STD),
        device,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "open_clip_config.json"
    if not file.exists():
        raise InputError(f"{folder} is no HPSv2 folder: it has no open_clip_config.json")
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"{file} is not valid JSON: {error}") from error
    if "model_cfg" not in config:
        raise InputError(f"{file} has no model_cfg: it must name embed_dim, vision_cfg and text_cfg there")
    return config


def _only_checkpoint(folder: Path) -> Path:
    files = sorted(folder.glob("*.pt"))
    if len(files) != 1:
        raise InputError(f"{folder} must hold exactly one .pt checkpoint, it has {len(files)}")
    return files[0]


def _read_state_dict(file: Path) -> dict[str, Tensor]:
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{file} is no checkpoint of plain tensors, expected HPSv2's .pt file: name another"
        ) from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise InputError(f"{file} has no 'state_dict': HPSv2 checkpoints are {{'state_dict': ...}}")
    return checkpoint["state_dict"]


def _check_keys(model: torch.nn.Module, state: dict[str, Tensor], file: Path) -> None:
    """As strict as load_state_dict, and with a short message."""
    wanted = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    given = {key: tuple(tensor.shape) for key, tensor in state.items()}
    wrong = sorted(key for key in wanted.keys() | given.keys() if wanted.get(key) != given.get(key))
    if wrong:
        key = wrong[0]
        raise InputError(
            f"{file} does not fit the architecture: {len(wrong)} of {len(wanted)} tensors differ, the first "
            f"is {key} (expected {wanted.get(key, 'none')}, found {given.get(key, 'none')})"
        )
