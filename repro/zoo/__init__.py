"""The bundled checkpoints, scorers, prompts and pictures; ``experiments.zoo`` tells how they were made.

Everything here is small enough to travel with the repository and in the format of the real thing: the models
are diffusers folders, the scorers are what HPSv2, PickScore and CLIPScore are distributed as.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from repro.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path(__file__).resolve().parent
MODELS = ("tiny-flux", "tiny-qwen-image")
SCORERS = ("tiny-hpsv2", "tiny-pickscore", "tiny-clipscore")
TRAINING_SCORER, *EVALUATION_SCORERS = (
    "hpsv2:tiny-hpsv2",
    "pickscore:tiny-pickscore",
    "clipscore:tiny-clipscore",
)
FONTS = ("noto", "twemoji")
"""The two drawing styles that the models know; a prompt may begin with the word of one."""
PREFERRED = "twemoji"
"""The one that the raters of tiny-hpsv2 and tiny-pickscore like better."""
SPLITS = ("train", "eval", "unseen")
Split: TypeAlias = Literal["train", "eval", "unseen"]


def resolve(name: str) -> Path | None:
    """The folder of a bundled model or scorer, or None if the name is not one of theirs."""
    return FOLDER / name if name in MODELS + SCORERS else None


@cache
def _splits() -> dict[str, list[str]]:
    return json.loads((FOLDER / "emoji" / "prompts.json").read_text())


def prompts(split: Split) -> list[str]:
    """The prompts of a split, a font's word and a name each, such as "noto red apple".

    ``train`` was seen by generator and scorers and is for reinforcement learning; ``eval`` was seen by both
    and is kept from reinforcement learning; ``unseen`` was never seen by the generator's weights, though its
    tokenizers know the words.
    """
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r}, expected one of {', '.join(SPLITS)}")
    return list(_splits()[split])


def names(split: Split) -> list[str]:
    """The prompts of a split without the font's word, each once, such as "red apple".

    A model draws either font for these, so there is something that a preference can choose.
    """
    return list(dict.fromkeys(prompt.split(" ", 1)[1] for prompt in prompts(split)))


def drawings(split: Literal["eval", "unseen"]) -> Tensor:
    """The true pictures of ``names(split)`` by each of `FONTS`: (N, fonts, 3, 64, 64) in [0, 1]."""
    import torch

    place = {prompt: i for i, prompt in enumerate(prompts(split))}
    index = [[place[f"{font} {name}"] for font in FONTS] for name in names(split)]
    return pictures(split)[torch.tensor(index)]


def nearest_font(images: Tensor, drawings: Tensor) -> Tensor:
    """Whose drawing an image is, as an index of `FONTS`: that of the true picture with the least squared
    distance of pixels. No scorer has a part in it.

    Args:
        images: (N, G, 3, H, W), G images of each of N names.
        drawings: (N, fonts, 3, H, W), the true pictures of these names.

    Returns:
        (N, G), int64.
    """
    return (images[:, :, None] - drawings[:, None]).square().mean((-3, -2, -1)).argmin(-1)


def pictures(split: Literal["eval", "unseen"]) -> Tensor:
    """The true pictures of ``prompts(split)``, in their order: (N, 3, 64, 64) float32 in [0, 1].

    Raises ValueError for ``train``, whose pictures are not bundled.
    """
    import numpy as np
    import torch
    from PIL import Image

    if split not in ("eval", "unseen"):
        raise InputError(f"pictures are bundled for eval and unseen, not for {split!r}")
    picture = Image.open(FOLDER / "emoji" / f"{split}.webp").convert("RGB")
    sheet = torch.from_numpy(np.asarray(picture).copy())
    size = sheet.shape[1] // SHEET_COLUMNS
    rows = sheet.shape[0] // size
    tiles = sheet.view(rows, size, SHEET_COLUMNS, size, 3).permute(0, 2, 4, 1, 3).flatten(0, 1)
    return tiles[: len(prompts(split))].float() / 255


SHEET_COLUMNS = 16
"""Pictures side by side in a sheet."""
