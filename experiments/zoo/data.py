"""The pictures and names that the bundled checkpoints learn from.

Two fonts draw the same named things: Noto Emoji (npm ``emoji-datasource-google``) and Twemoji (npm
``emoji-datasource-twitter``), 64x64 on white. A caption is the font's word and the Unicode name,
``"noto red apple"``. Names are split once, by a hash of the name, into

- ``train``:  seen by the transformer, scorers and reinforcement learning,
- ``eval``:   seen by the transformer and scorers, kept from reinforcement learning (the evaluation prompts),
- ``unseen``: seen by scorers, never by any part of the generator,
- ``extra``:  seen by scorers and autoencoders, not by the transformer, which two cores could not teach all
names
  within an hour.

Left out: flags, symbols, clock faces, people and families, whose names do not say what the picture shows or
whose pictures differ by a few pixels; and names of more than five words. Faces, hands, animals, food, things
and places stay.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

FONTS = {"noto": "google", "twemoji": "twitter"}
VERSION = "16.0.0"
SIZE = 64
_LEFT_OUT_CATEGORIES = {"Flags", "Component", "Symbols"}
_LEFT_OUT_SUBCATEGORIES = {"time", "family"}  # and all that begin with "person"
_EVAL, _UNSEEN, _TRAIN = 64, 64, 512


@dataclass(frozen=True)
class Pictures:
    """``images`` (N, 3, 64, 64) in [0, 1], with the ``names``, ``fonts`` and ``splits`` of each."""

    images: Tensor
    names: tuple[str, ...]
    fonts: tuple[str, ...]
    splits: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def captions(self) -> tuple[str, ...]:
        return tuple(f"{font} {name}" for font, name in zip(self.fonts, self.names, strict=True))

    def select(self, *, fonts: Sequence[str] | None = None, splits: Sequence[str] | None = None) -> Pictures:
        """The pictures of the given fonts and splits (None: all)."""
        keep = [
            i
            for i in range(len(self))
            if (fonts is None or self.fonts[i] in fonts) and (splits is None or self.splits[i] in splits)
        ]
        return Pictures(
            self.images[keep],
            tuple(self.names[i] for i in keep),
            tuple(self.fonts[i] for i in keep),
            tuple(self.splits[i] for i in keep),
        )


def fetch(folder: Path) -> None:
    """Download and unpack both npm packages into ``folder`` unless they are there (``npm pack``, 130 MB)."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in FONTS.values():
        target = folder / package
        if (target / "package" / "emoji.json").exists():
            continue
        archive = folder / f"emoji-datasource-{package}-{VERSION}.tgz"
        if not archive.exists():
            subprocess.run(
                ["npm", "pack", "--silent", archive.stem.rsplit("-", 1)[0] + "@" + VERSION],
                cwd=folder,
                check=True,
            )
        with tarfile.open(archive) as tar:
            wanted = [
                member
                for member in tar.getmembers()
                if member.name == "package/emoji.json" or member.name.startswith(f"package/img/{package}/64/")
            ]
            tar.extractall(target, members=wanted, filter="data")


def _kept(entry: dict) -> bool:
    subcategory = entry["subcategory"]
    return (
        entry["has_img_google"]
        and entry["has_img_twitter"]
        and entry["category"] not in _LEFT_OUT_CATEGORIES
        and subcategory not in _LEFT_OUT_SUBCATEGORIES
        and not subcategory.startswith("person")
        and len(entry["name"].split()) <= 5
    )


def _on_white(path: Path) -> Tensor:
    picture = Image.open(path).convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(white, picture).convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(flat).copy()).permute(2, 0, 1)


def split_names(names: Sequence[str]) -> dict[str, str]:
    """The split of each name, decided by its sha256 alone, so that adding a name moves few others."""
    order = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    splits = ["eval"] * _EVAL + ["unseen"] * _UNSEEN + ["train"] * _TRAIN
    return dict(zip(order, splits + ["extra"] * (len(order) - len(splits)), strict=True))


def load(folder: Path) -> Pictures:
    """All pictures of both fonts; fetched and decoded once, then read from ``folder/pictures.pt``."""
    cache = folder / "pictures.pt"
    if not cache.exists():
        fetch(folder)
        entries = json.loads((folder / "google" / "package" / "emoji.json").read_text())
        by_name = {entry["name"].lower(): entry for entry in entries if _kept(entry)}
        names = sorted(by_name)
        images, rows = [], []
        for font, package in FONTS.items():
            for name in names:
                file = folder / package / "package" / "img" / package / "64" / by_name[name]["image"]
                images.append(_on_white(file))
                rows.append((name, font))
        torch.save({"images": torch.stack(images), "rows": rows}, cache)
    stored = torch.load(cache, weights_only=True)
    drawn, fonts = zip(*stored["rows"], strict=True)
    splits = split_names(sorted(set(drawn)))
    return Pictures(stored["images"].float() / 255, drawn, fonts, tuple(splits[name] for name in drawn))
