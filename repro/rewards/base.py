"""What a scorer is, and what the CLIP-like ones share: score = scale * cos(image, text).

Only the scale and the towers differ between HPSv2 (scale 1), PickScore (its own learned temperature) and
CLIPScore (100). Scores carry no gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.errors import InputError


class Scorer(Protocol):
    """Images (B, 3, H, W) in [0, 1] and B prompts to scores (B,), float32, without gradients."""

    name: str

    def __call__(self, images: Tensor, prompts: Sequence[str], /) -> Tensor: ...


def check(images: Tensor, prompts: Sequence[str] | None = None) -> None:
    """Refuse what is no batch of images in [0, 1], or has not one prompt for each.

    Raises:
        ValueError: what is wrong, in one line.
    """
    if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
        raise InputError(
            f"images are {tuple(images.shape)} {images.dtype}: expected (B, 3, H, W) of floats in [0, 1]"
        )
    if images.numel() and not (images.min() >= 0 and images.max() <= 1):  # so that NaN fails, too
        raise InputError(
            f"images range over [{float(images.min()):.3g}, {float(images.max()):.3g}]: expected [0, 1]; "
            "clamp or rescale them"
        )
    if prompts is None:
        return
    if isinstance(prompts, str) or len(prompts) != len(images):
        given = "one string" if isinstance(prompts, str) else f"{len(prompts)} prompts"
        raise InputError(f"{len(images)} images but {given}: pass a list with one prompt an image")


class ClipScorer(ABC):
    """Two towers and a scale.

    Args:
        name: what to call it in tables.
        model: frozen here, and put in eval mode.
        device: where it runs; images are moved there.

    Attributes:
        batch_size: images, or texts, that go through a tower at a time.
    """

    batch_size: int = 64

    def __init__(self, name: str, model: nn.Module, device: torch.device | str) -> None:
        self.name = name
        self.device = torch.device(device)
        self.model: Any = model.to(self.device).eval().requires_grad_(False)

    @property
    @abstractmethod
    def scale(self) -> float:
        """What the cosine is multiplied with."""

    @abstractmethod
    def _embed_images(self, images: Tensor) -> Tensor:
        """Preprocess and embed: (b, 3, H, W) in [0, 1] -> (b, d), not normalised."""

    @abstractmethod
    def _embed_texts(self, prompts: list[str]) -> Tensor:
        """Tokenize and embed: b texts -> (b, d), not normalised."""

    @torch.no_grad()
    def image_features(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1] to unit vectors (B, d), float32."""
        check(images)
        parts = [self._embed_images(part.to(self.device).float()) for part in images.split(self.batch_size)]
        return functional.normalize(torch.cat(parts).float(), dim=-1)

    @torch.no_grad()
    def text_features(self, prompts: Sequence[str]) -> Tensor:
        """B texts to unit vectors (B, d), float32; a text that comes again is embedded once."""
        row = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        distinct = list(row)
        starts = range(0, len(distinct), self.batch_size)
        parts = [self._embed_texts(distinct[start : start + self.batch_size]) for start in starts]
        features = functional.normalize(torch.cat(parts).float(), dim=-1)
        return features[[row[prompt] for prompt in prompts]]

    def __call__(self, images: Tensor, prompts: Sequence[str], /) -> Tensor:
        """Scores (B,), float32, on the device of `images`."""
        check(images, prompts)
        cosine = (self.image_features(images) * self.text_features(prompts)).sum(dim=-1)
        return (self.scale * cosine).to(images.device)


class UserScorer:
    """A function of the user's, with its input and output checked."""

    def __init__(self, name: str, function: Callable[[Tensor, list[str]], Any]) -> None:
        self.name = name
        self.function = function

    @torch.no_grad()
    def __call__(self, images: Tensor, prompts: Sequence[str], /) -> Tensor:
        check(images, prompts)
        try:
            scores = torch.as_tensor(self.function(images, list(prompts)), dtype=torch.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"scorer {self.name} failed or returned no numbers: {error}") from error
        if scores.shape != (len(images),) or not scores.isfinite().all():
            raise InputError(
                f"scorer {self.name} returned {tuple(scores.shape)} for {len(images)} images: expected "
                f"({len(images)},) finite numbers"
            )
        return scores.to(images.device)
