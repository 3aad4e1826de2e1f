"""CLIPScore: how well an image fits its text, as 100 * cos(image, text) of a CLIP model.

The summary of the paper does not say which variant it reports. This is torchmetrics' (100 times the cosine,
by default with openai/clip-vit-large-patch14), except that a negative cosine is kept: for one image it is a
rank like any other, and a floor at zero would make images equal that are not. Hessel et al. (2021) define
2.5 * max(cos, 0) on ViT-B/32 with the prefix "A photo depicts "; divide by 40 for their scale.
"""

from __future__ import annotations

import torch

from repro.rewards.transformers_clip import TransformersClip

HUB = "openai/clip-vit-large-patch14"


class CLIPScore(TransformersClip):
    """See the module; made by `load`."""

    scale = 100.0


def load(source: str | None = None, device: torch.device | str = "cpu") -> CLIPScore:
    """CLIPScore from a bundled name, a folder or a hub id; OpenAI's ViT-L/14 without any.

    Raises:
        ValueError: in one line, what is wrong with the source.
    """
    return CLIPScore("clipscore", source or HUB, device)
