"""The three bundled scorers: small CLIP models in the file formats of HPSv2, PickScore and CLIPScore.

The training scorer (``tiny-hpsv2``) and the evaluation scorers (``tiny-pickscore``, ``tiny-clipscore``)
learn from disjoint pictures of the same names (`data.side`): where one saw the Noto picture, the other saw
Twemoji's. So their agreement means something. Each is judged on the pictures of the other side, which it
never saw.

Two thousand pictures teach a small text encoder too slowly to be any use to the image encoder beside it. So
first the image encoder learns, by cross-entropy over all names, against one free vector a name; then the text
encoder learns these vectors. Pictures are moved, scaled, turned, recoloured and mirrored at
random; the word of a font is put before a name at random, since a scorer should rate what is drawn and not
the font.
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

from experiments.zoo.data import FONTS, Pictures
from experiments.zoo.loop import train

CONTEXT = 16
RESOLUTION = 12
"""Scorers see pictures at 12x12, in one patch. With some 2,000 pictures to learn from, ones of several
patches learned their pictures by heart and named far fewer of those that they never saw."""
VOCABULARY = 1300
WIDTH, MLP_WIDTH = 240, 768
"""Of the image encoder's one block."""
DIM = 96
"""Of the vectors that are compared, and of the text encoder: a narrower one could not reach them all."""
BATCH, IMAGE_STEPS, TEXT_STEPS = 256, 1000, 700
PREFIXES = ("", *(f"{font} " for font in FONTS))
# Normalisation of pixels on [0, 1], written into every scorer's preprocessing config.
MEAN, STD = (0.85, 0.8, 0.74), (0.25, 0.26, 0.32)


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
    """open_clip's ``model_cfg`` of tiny-hpsv2."""
    return {
        "embed_dim": DIM,
        "vision_cfg": {
            "image_size": RESOLUTION,
            "patch_size": RESOLUTION,
            "layers": 1,
            "width": WIDTH,
            "mlp_ratio": MLP_WIDTH / WIDTH,
            "head_width": WIDTH // 4,
        },
        "text_cfg": {
            "context_length": CONTEXT,
            "vocab_size": vocab_size,
            "width": DIM,
            "heads": 4,
            "layers": 1,
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


def transformers_dual(tokenizer: CLIPTokenizer) -> TransformersDual:
    """A PickScore- or CLIPScore-style scorer's network."""
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": DIM,
        "intermediate_size": 4 * DIM,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "image_size": RESOLUTION,
        "patch_size": RESOLUTION,
        "hidden_size": WIDTH,
        "intermediate_size": MLP_WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=DIM)
    return TransformersDual(CLIPModel(config))


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move (8 %), scale (0.8-1.15), turn (12 degrees), recolour and mirror (B, 3, 64, 64)."""
    n = len(images)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator)

    angle, scale = uniform(-math.pi / 15, math.pi / 15), uniform(0.87, 1.25)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = torch.stack([cos, -sin, uniform(-0.16, 0.16), sin, cos, uniform(-0.16, 0.16)], dim=1).view(n, 2, 3)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)
    # Sampled as darkness, so that what comes in from outside is white paper.
    moved = 1 - F.grid_sample(1 - images, grid, align_corners=False)
    gain = 0.85 + 0.3 * torch.rand(n, 3, 1, 1, generator=generator)
    tinted = 1 - (1 - moved) * gain
    mirrored = torch.rand(n, generator=generator).view(n, 1, 1, 1) < 0.5
    return torch.where(mirrored, tinted.flip(-1), tinted).clamp(0, 1)


def prepare(images: Tensor) -> Tensor:
    """(B, 3, 64, 64) in [0, 1] to what the networks take, as their preprocessing configs say."""
    small = F.interpolate(images, size=(RESOLUTION, RESOLUTION), mode="bicubic", antialias=True)
    return (small - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def tokens(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """Token ids (B, 16)."""
    padded = tokenizer(texts, padding="max_length", truncation=True, max_length=CONTEXT, return_tensors="pt")
    return padded.input_ids


class _Pictures(nn.Module):
    """What learns first: an image encoder and one vector a name."""

    def __init__(self, dual: Any, names: int) -> None:
        super().__init__()
        self.dual = dual
        self.vectors = nn.Parameter(0.1 * torch.randn(names, DIM))


def train_scorer(
    dual: Any, tokenizer: CLIPTokenizer, pictures: Pictures, folder: Path, seed: int
) -> dict[str, dict[str, float]]:
    """Train ``dual`` in place; return the last losses of both parts."""
    names = sorted(set(pictures.names))
    labels = torch.tensor([names.index(name) for name in pictures.names])
    both = _Pictures(dual, len(names))

    def image_loss(step: int, generator: torch.Generator):
        index = torch.randperm(len(pictures), generator=generator)[:BATCH]
        images = prepare(augment(pictures.images[index], generator))
        cosines = F.normalize(dual.encode_image(images), dim=-1) @ F.normalize(both.vectors, dim=-1).T
        logits = dual.logit_scale.exp().clamp(max=50) * cosines
        right = (cosines.argmax(1) == labels[index]).float().mean().item()
        return F.cross_entropy(logits, labels[index], label_smoothing=0.1), {"right": right}

    def text_loss(step: int, generator: torch.Generator):
        index = torch.randperm(len(names), generator=generator)[:BATCH]
        words = torch.randint(len(PREFIXES), (len(index),), generator=generator).tolist()
        texts = [PREFIXES[w] + names[i] for w, i in zip(words, index.tolist(), strict=True)]
        features = dual.encode_text(tokens(tokenizer, texts))
        cosine = F.cosine_similarity(features, both.vectors[index], dim=-1).mean()
        return 1 - cosine, {"cosine": cosine.item()}

    text_parameters = _text_parameters(dual)
    both.requires_grad_(True)
    for parameter in text_parameters:
        parameter.requires_grad_(False)
    image = train(
        both, image_loss, folder=folder / "images", steps=IMAGE_STEPS, lr=2e-3, seed=seed, weight_decay=0.5
    )
    both.requires_grad_(False).zero_grad()
    for parameter in text_parameters:
        parameter.requires_grad_(True)
    text = train(both, text_loss, folder=folder / "texts", steps=TEXT_STEPS, lr=3e-3, seed=seed)
    return {"images": image, "texts": text}


def _text_parameters(dual: nn.Module) -> list[nn.Parameter]:
    """Of the text encoder: everything that neither the pictures nor the scale need."""
    apart = ("visual", "vision_model", "logit_scale", "logit_bias")
    return [p for name, p in dual.named_parameters() if not any(word in name for word in apart)]


@torch.no_grad()
def accuracy_among(
    dual: Any, tokenizer: CLIPTokenizer, pictures: Pictures, names: int = 100, seed: int = 0
) -> float:
    """Share of ``pictures`` whose own name scores highest among ``names`` names, the others at random."""
    image = torch.cat(
        [F.normalize(dual.encode_image(prepare(b)), dim=-1) for b in pictures.images.split(256)]
    )
    text = F.normalize(dual.encode_text(tokens(tokenizer, list(pictures.names))), dim=-1)
    scores = image @ text.T
    generator = torch.Generator().manual_seed(seed)
    right = []
    for i, name in enumerate(pictures.names):
        others = torch.randperm(len(pictures), generator=generator).tolist()
        others = [j for j in others if pictures.names[j] != name][: names - 1]
        right.append(bool(scores[i, i] > scores[i, others].max()))
    return sum(right) / len(right)
