"""PickScore and CLIPScore: a `transformers` CLIPModel folder or hub id as the two towers of a scorer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from repro.errors import InputError
from repro.hub import first_line, locate, no_progress_bars
from repro.rewards.base import ClipScorer

CLIPSCORE = "openai/clip-vit-large-patch14"
PICKSCORE, PICKSCORE_PROCESSOR = "yuvalkirstain/PickScore_v1", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"


class TransformersClip(ClipScorer):
    """CLIPModel and CLIPProcessor, with the processor's own resizing, cropping and normalising.

    Args:
        kind: the scorer's name.
        source: a bundled name, a folder (CLIPModel and CLIPProcessor saved into the same one), or a hub id.
        device: where it runs.
        processor: where the processor is, if not with the model.

    Raises:
        ValueError: in one line, what is wrong with the source.
    """

    def __init__(
        self, kind: str, source: str, device: torch.device | str, processor: str | None = None
    ) -> None:
        from transformers import CLIPModel, CLIPProcessor

        folder = locate(source, f"{kind} model")
        if folder is not None and not (folder / "config.json").exists():
            raise InputError(f"{source} is no transformers folder: it has no config.json")
        where = {"local_files_only": folder is not None}
        model_source = str(folder or source)
        with no_progress_bars() if folder else nullcontext():
            # float32 whatever the file holds: a reward's noise should not come from rounding
            model, info = _load(
                CLIPModel.from_pretrained,
                model_source,
                dtype=torch.float32,
                output_loading_info=True,
                **where,
            )
            self.processor: Any = _load(CLIPProcessor.from_pretrained, processor or model_source, **where)
        # transformers would only warn, and score with random weights
        wrong = [*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])]
        if wrong:
            raise InputError(
                f"{source} is no complete CLIP model: {len(wrong)} tensors are missing, {wrong[0]} first"
            )
        super().__init__(f"{kind}:{source.rstrip('/').rsplit('/', 1)[-1]}", model, device)
        self.max_length = model.config.text_config.max_position_embeddings

    def _embed_images(self, images: Tensor) -> Tensor:
        # The processor would divide bytes by 255; these are in [0, 1] already.
        pixels = self.processor.image_processor(
            list(images), do_rescale=False, return_tensors="pt"
        ).pixel_values
        return self.model.get_image_features(pixel_values=pixels.to(self.device)).pooler_output

    def _embed_texts(self, prompts: list[str]) -> Tensor:
        tokens = self.processor.tokenizer(
            prompts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        ).to(self.device)
        return self.model.get_text_features(
            input_ids=tokens.input_ids, attention_mask=tokens.attention_mask
        ).pooler_output


class PickScore(TransformersClip):
    """Human preference, as exp(logit_scale) * cos(image, text) of a fine-tuned CLIP ViT-H/14.

    The published usage, with its learned temperature (about 100). A folder is a plain transformers one,
    ``CLIPModel.save_pretrained`` and ``CLIPProcessor.save_pretrained`` into the same place. Made by
    `load_pickscore`.
    """

    @property
    def scale(self) -> float:
        return float(self.model.logit_scale.exp())


def load_pickscore(source: str | None = None, device: torch.device | str = "cpu") -> PickScore:
    """PickScore from a bundled name, a folder or a hub id; the published one, from the hub, without any.

    Raises:
        ValueError: in one line, what is wrong with the source.
    """
    if source is None or source == PICKSCORE:
        return PickScore("pickscore", PICKSCORE, device, processor=PICKSCORE_PROCESSOR)
    return PickScore("pickscore", source, device)


class CLIPScore(TransformersClip):
    """How well an image fits its text, as 100 * cos(image, text) of a CLIP model; made by `load_clipscore`.

    The summary of the paper does not say which variant it reports. This is torchmetrics' (100 times the
    cosine, by default with openai/clip-vit-large-patch14), except that a negative cosine is kept: for one
    image it is a rank like any other, and a floor at zero would make images equal that are not. Hessel et al.
    (2021) define 2.5 * max(cos, 0) on ViT-B/32 with the prefix "A photo depicts "; divide by 40 for their
    scale.
    """

    scale = 100.0


def load_clipscore(source: str | None = None, device: torch.device | str = "cpu") -> CLIPScore:
    """CLIPScore from a bundled name, a folder or a hub id; OpenAI's ViT-L/14 without any.

    Raises:
        ValueError: in one line, what is wrong with the source.
    """
    return CLIPScore("clipscore", source or CLIPSCORE, device)


def _load(from_pretrained: Callable[..., Any], source: str, **kwargs: Any) -> Any:
    try:
        return from_pretrained(source, **kwargs)
    except (OSError, ValueError, RuntimeError, AttributeError, TypeError) as error:
        raise InputError(
            f"cannot load a CLIP model and processor from {source}: {first_line(error)}"
        ) from error
