"""PickScore: human preference, as exp(logit_scale) * cos(image, text) of a fine-tuned CLIP ViT-H/14.

The published usage, with its learned temperature (about 100). A folder is a plain transformers one,
``CLIPModel.save_pretrained`` and ``CLIPProcessor.save_pretrained`` into the same place.
"""

from __future__ import annotations

import torch

from repro.rewards.transformers_clip import TransformersClip

HUB, HUB_PROCESSOR = "yuvalkirstain/PickScore_v1", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"


class PickScore(TransformersClip):
    """See the module; made by `load`."""

    @property
    def scale(self) -> float:
        return float(self.model.logit_scale.exp())


def load(source: str | None = None, device: torch.device | str = "cpu") -> PickScore:
    """PickScore from a bundled name, a folder or a hub id; the published one, from the hub, without any.

    Raises:
        ValueError: in one line, what is wrong with the source.
    """
    if source is None or source == HUB:
        return PickScore("pickscore", HUB, device, processor=HUB_PROCESSOR)
    return PickScore("pickscore", source, device)
