"""The three bundled scorers: small CLIP models in the file formats of HPSv2, PickScore and CLIPScore.

The training scorer (``tiny-hpsv2``) learns from Noto pictures only, the evaluation scorers
(``tiny-pickscore``, ``tiny-clipscore``) from Twemoji pictures only, with other sizes and seeds: no picture is
shared between training and evaluation, so that their agreement means something. Each is judged on the font it
never saw.

Loss: symmetric cross-entropy over a batch of distinct names. Pictures are moved, scaled, turned, recoloured
and blurred at random; the word of a font is put before a name at random, since a scorer should rate what is
drawn and not the font.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from experiments.zoo.data import FONTS, SIZE, Pictures
from experiments.zoo.loop import train

CONTEXT = 16
PREFIXES = ("", *(f"{font} " for font in FONTS))
# Normalisation of pixels on [0, 1], written into every scorer's preprocessing config.
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


class TransformersDual(nn.Module):
    """A transformers CLIPModel under open_clip's method names, which training speaks."""

    def __init__(self, clip: CLIPModel) -> None:
        super().__init__()
        self.clip = clip

    @property
    def logit_scale(self) -> nn.Parameter:
        return self.clip.logit_scale

    def encode_image(self, image: Tensor) -> Tensor:
        return self.clip.visual_projection(self.clip.vision_model(pixel_values=image).pooler_output)

    def encode_text(self, text: Tensor) -> Tensor:
        return self.clip.text_projection(self.clip.text_model(input_ids=text).pooler_output)


def open_clip_config(vocab_size: int) -> dict:
    """open_clip's ``model_cfg`` of tiny-hpsv2: patches of 8, width 96, 4 layers."""
    return {
        "embed_dim": 64,
        "vision_cfg": {"image_size": SIZE, "layers": 4, "width": 96, "head_width": 24, "patch_size": 8},
        "text_cfg": {
            "context_length": CONTEXT,
            "vocab_size": vocab_size,
            "width": 96,
            "heads": 4,
            "layers": 2,
        },
    }


def open_clip_dual(tokenizer: CLIPTokenizer) -> nn.Module:
    """The HPSv2-style scorer's network."""
    config = open_clip_config(len(tokenizer))
    vision, text = (
        open_clip.CLIPVisionCfg(**config["vision_cfg"]),
        open_clip.CLIPTextCfg(**config["text_cfg"]),
    )
    return open_clip.CLIP(config["embed_dim"], vision, text)


def transformers_dual(tokenizer: CLIPTokenizer, width: int, layers: int) -> TransformersDual:
    """A PickScore- or CLIPScore-style scorer's network, on patches of 16."""
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "image_size": SIZE,
        "patch_size": 16,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
    }
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=64)
    return TransformersDual(CLIPModel(config))


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move (8 %), scale (0.8-1.15), turn (12 degrees), recolour and blur each of (B, 3, 64, 64)."""
    n = len(images)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator)

    angle, scale = uniform(-math.pi / 15, math.pi / 15), uniform(0.87, 1.25)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = torch.stack([cos, -sin, uniform(-0.16, 0.16), sin, cos, uniform(-0.16, 0.16)], dim=1).view(n, 2, 3)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)
    # Sampled as darkness, so that what comes in from outside is white paper.
    moved = 1 - F.grid_sample(1 - images, grid, align_corners=False)
    gain = (0.85 + 0.3 * torch.rand(n, 3, 1, 1, generator=generator)).clamp(max=1.1)
    tinted = 1 - (1 - moved) * gain
    blurred = F.interpolate(F.avg_pool2d(tinted, 2), scale_factor=2, mode="bilinear")
    share = uniform(0, 1).clamp(min=0.4).sub(0.4).view(n, 1, 1, 1) / 0.6
    return torch.lerp(tinted, blurred, share).clamp(0, 1)


def normalise(images: Tensor) -> Tensor:
    """[0, 1] pixels to the networks' range."""
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def tokens(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """Token ids (B, 16)."""
    padded = tokenizer(texts, padding="max_length", truncation=True, max_length=CONTEXT, return_tensors="pt")
    return padded.input_ids


def train_scorer(
    dual: Any,
    tokenizer: CLIPTokenizer,
    pictures: Pictures,
    folder: Path,
    steps: int,
    seed: int,
    batch: int,
) -> dict[str, float]:
    """Train ``dual`` in place on one font's pictures; return the last losses."""

    def loss_fn(step: int, generator: torch.Generator):
        index = torch.randperm(len(pictures), generator=generator)[:batch].tolist()
        images = normalise(augment(pictures.images[index], generator))
        words = torch.randint(len(PREFIXES), (batch,), generator=generator).tolist()
        texts = [PREFIXES[w] + pictures.names[i] for w, i in zip(words, index, strict=True)]
        image = F.normalize(dual.encode_image(images), dim=-1)
        text = F.normalize(dual.encode_text(tokens(tokenizer, texts)), dim=-1)
        logits = dual.logit_scale.exp().clamp(max=50) * image @ text.T
        target = torch.arange(batch)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        return loss, {"right": (logits.argmax(1) == target).float().mean().item()}

    return train(dual, loss_fn, folder=folder, steps=steps, lr=1.5e-3, seed=seed, weight_decay=0.1)


@torch.no_grad()
def accuracy_among(
    dual: Any, tokenizer: CLIPTokenizer, pictures: Pictures, names: int = 100, seed: int = 0
) -> float:
    """Share of ``pictures`` whose own name scores highest among ``names`` names, the others at random."""
    image = torch.cat(
        [F.normalize(dual.encode_image(normalise(b)), dim=-1) for b in pictures.images.split(256)]
    )
    text = F.normalize(dual.encode_text(tokens(tokenizer, list(pictures.names))), dim=-1)
    scores = image @ text.T
    generator = torch.Generator().manual_seed(seed)
    right = []
    for i in range(len(pictures)):
        others = torch.randperm(len(pictures), generator=generator)
        others = others[others != i][: names - 1]
        right.append(bool(scores[i, i] > scores[i, others].max()))
    return sum(right) / len(right)
