"""The pictures and names that the bundled checkpoints learn from.

Four fonts draw the same named things, 64x64 on white: Noto Emoji (npm ``emoji-datasource-google``) and
Twemoji (npm ``emoji-datasource-twitter``), which the generators learn; Fluent Emoji (npm
``@lobehub/fluent-emoji-3d``) and EmojiOne (npm ``emojione``), which only scorers see. A caption is the font's
word and the Unicode name, ``"noto red apple"``. Names are split once, by a hash of the name, into

- ``train``:  seen by the transformer, scorers and reinforcement learning,
- ``eval``:   seen by the transformer and scorers, kept from reinforcement learning (the evaluation prompts),
- ``unseen``: seen by scorers, and by the generator's tokenizers (not its weights) alone,
- ``extra``:  seen by scorers and autoencoders, not by the transformer, which two cores could not teach them
  within an hour.

Left out: flags, symbols, clock faces, people and families, whose names do not say what the picture shows or
whose pictures differ by a few pixels; and names of more than five words. Faces, hands, animals, food, things
and places stay.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

FONTS = ("noto", "twemoji")
SCORERS_FONTS = ("fluent", "emojione")
PACKAGES = {
    "noto": "emoji-datasource-google@16.0.0",
    "twemoji": "emoji-datasource-twitter@16.0.0",
    "fluent": "@lobehub/fluent-emoji-3d@1.1.0",
    "emojione": "emojione@2.2.7",
}
SIZE = 64
_LEFT_OUT_CATEGORIES = {"Flags", "Component", "Symbols"}
_LEFT_OUT_SUBCATEGORIES = {"time", "family"}  # and all that begin with "person"
_EVAL, _UNSEEN, _TRAIN = 64, 64, 512
_WANTED = re.compile(r"package/(emoji\.json|img/\w+/64/.*|assets/.*\.webp|assets/png/.*\.png)")


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
        return self._keep(
            (fonts is None or font in fonts) and (splits is None or split in splits)
            for font, split in zip(self.fonts, self.splits, strict=True)
        )

    def where(self, condition: Callable[[str, str], bool]) -> Pictures:
        """The pictures whose font and name meet a condition."""
        return self._keep(condition(font, name) for font, name in zip(self.fonts, self.names, strict=True))

    def every(self, n: int) -> Pictures:
        """Each n-th picture."""
        return self._keep(i % n == 0 for i in range(len(self)))

    def _keep(self, kept: Iterable[bool]) -> Pictures:
        return self.take([i for i, keep in enumerate(kept) if keep])

    def take(self, index: Sequence[int]) -> Pictures:
        """The pictures at given places."""
        index = list(index)
        return Pictures(
            self.images[index],
            tuple(self.names[i] for i in index),
            tuple(self.fonts[i] for i in index),
            tuple(self.splits[i] for i in index),
        )


def fetch(folder: Path) -> None:
    """Download and unpack the npm packages into ``folder`` unless they are there (``npm pack``, 240 MB)."""
    for font, package in PACKAGES.items():
        target = folder / font
        if target.exists():
            continue
        unpacked = target.with_suffix(".part")
        unpacked.mkdir(parents=True, exist_ok=True)
        packing = ["npm", "pack", "--silent", package]
        archive = subprocess.run(packing, cwd=unpacked, check=True, capture_output=True, text=True).stdout
        with tarfile.open(unpacked / archive.split()[-1]) as tar:
            members = [m for m in tar.getmembers() if _WANTED.fullmatch(m.name)]
            tar.extractall(unpacked, members=members, filter="data")
        unpacked.rename(target)


def _file(folder: Path, font: str, entry: dict) -> Path | None:
    """The picture of an emoji, or None where the font has none."""
    codes = [code.lower() for code in (entry["unified"], entry["non_qualified"]) if code]
    if font == "fluent":
        files = [folder / font / "package" / "assets" / f"{code}.webp" for code in codes]
    elif font == "emojione":
        # Its files leave out the variation selector.
        files = [
            folder / font / "package" / "assets" / "png" / f"{code.replace('-fe0f', '')}.png"
            for code in codes
        ]
    else:
        vendor = PACKAGES[font].split("@")[0].rsplit("-", 1)[-1]
        files = [folder / font / "package" / "img" / vendor / "64" / entry["image"]]
    return next((file for file in files if file.exists()), None)


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


def side(font: str, name: str) -> int:
    """Which scorers learn this picture: 0 the training scorer, 1 the evaluation scorers.

    Every scorer meets every name and every font, but never a picture that one of the other side learned.
    """
    parity = hashlib.sha256(name.encode()).digest()[-1] % 2
    return (parity + (font in ("twemoji", "emojione"))) % 2


def split_names(names: Sequence[str]) -> dict[str, str]:
    """The split of each name, decided by its sha256 alone, so that adding a name moves few others."""
    order = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    splits = ["eval"] * _EVAL + ["unseen"] * _UNSEEN + ["train"] * _TRAIN
    return dict(zip(order, splits + ["extra"] * (len(order) - len(splits)), strict=True))


def load(folder: Path) -> Pictures:
    """All pictures of all fonts; fetched and decoded once, then read from ``folder/pictures.pt``."""
    cache = folder / "pictures.pt"
    if not cache.exists():
        fetch(folder)
        entries = json.loads((folder / "noto" / "package" / "emoji.json").read_text())
        by_name = {entry["name"].lower(): entry for entry in entries if _kept(entry)}
        names = sorted(by_name)
        images, rows = [], []
        for font in PACKAGES:
            for name in names:
                file = _file(folder, font, by_name[name])
                if file is not None:
                    images.append(_on_white(file))
                    rows.append((name, font))
        torch.save({"images": torch.stack(images), "rows": rows}, cache)
    stored = torch.load(cache, weights_only=True)
    drawn, fonts = zip(*stored["rows"], strict=True)
    splits = split_names(sorted(set(drawn)))
    return Pictures(stored["images"].float() / 255, drawn, fonts, tuple(splits[name] for name in drawn))
