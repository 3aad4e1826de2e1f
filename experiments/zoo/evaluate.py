"""How good a bundled model is, judged by scorers that had no part in its training.

Four means over prompts on one scale: real pictures with their own prompts, the autoencoder's
reconstructions of them, the model's samples, and real pictures with other prompts. A sample's *share* is
how far it is from the last to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, FluxPipeline, QwenImagePipeline
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from experiments.zoo.data import SIZE, Pictures
from experiments.zoo.dit import MAX_SEQUENCE_LENGTH
from repro.rewards import Scorer

SAMPLING_STEPS = 28


@torch.no_grad()
def sample(
    pipe: FluxPipeline | QwenImagePipeline, prompts: Sequence[str], guidance: float = 1.0, seed: int = 0
) -> Tensor:
    """Stock pipeline calls: images (N, 3, 64, 64) in [0, 1]."""
    pipe.set_progress_bar_config(disable=True)
    images: list[Tensor] = []
    for start in range(0, len(prompts), 64):
        some = list(prompts[start : start + 64])
        options: dict[str, Any] = {"height": SIZE, "width": SIZE, "num_inference_steps": SAMPLING_STEPS}
        if isinstance(pipe, FluxPipeline):
            options["max_sequence_length"] = MAX_SEQUENCE_LENGTH
        if guidance > 1:
            options |= {"negative_prompt": [""] * len(some), "true_cfg_scale": guidance}
        generator = torch.Generator().manual_seed(seed + start)
        images.append(pipe(some, generator=generator, output_type="pt", **options).images.float())
    return torch.cat(images)


@torch.no_grad()
def reconstruct(vae: Any, images: Tensor) -> Tensor:
    """Pictures through the autoencoder's posterior mean."""
    x = images * 2 - 1
    if isinstance(vae, AutoencoderKLQwenImage):
        return ((vae.decode(vae.encode(x[:, :, None]).latent_dist.mean).sample[:, :, 0] + 1) / 2).clamp(0, 1)
    return ((vae.decode(vae.encode(x).latent_dist.mean).sample + 1) / 2).clamp(0, 1)


def scores(scorer: Scorer, pictures: Pictures, reconstructions: Tensor, samples: Tensor) -> dict[str, float]:
    """The four means and the shares of the way from shuffled prompts to real pictures."""
    prompts = list(pictures.captions)
    shift = len(prompts) // 3
    others = prompts[shift:] + prompts[:shift]
    means = {
        "real": float(scorer(pictures.images, prompts).mean()),
        "reconstructions": float(scorer(reconstructions, prompts).mean()),
        "samples": float(scorer(samples, prompts).mean()),
        "shuffled": float(scorer(pictures.images, others).mean()),
    }
    scale = means["real"] - means["shuffled"]
    return {
        **means,
        "share_reconstructions": (means["reconstructions"] - means["shuffled"]) / scale,
        "share_samples": (means["samples"] - means["shuffled"]) / scale,
    }


def contact_sheet(pictures: Pictures, samples: Tensor, columns: int = 4) -> Image.Image:
    """Real picture beside sample, with the prompt below each pair."""
    zoom, gap, text = 80, 6, 14
    width, height = 2 * zoom + 3 * gap, zoom + text + 2 * gap
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height + 16), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((gap, 2), "left: real picture, right: sample", fill="black")
    for i, (real, drawn) in enumerate(zip(pictures.images, samples, strict=True)):
        x, y = (i % columns) * width + gap, 16 + (i // columns) * height
        for k, tile in enumerate((real, drawn)):
            sheet.paste(
                to_pil_image(tile).resize((zoom, zoom), Image.Resampling.BICUBIC), (x + k * (zoom + gap), y)
            )
        draw.text((x, y + zoom + 1), pictures.captions[i][:30], fill="black")
    return sheet
