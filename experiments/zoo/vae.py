"""The two image autoencoders, 64x64 pictures to 8x8x16 latents, as FLUX and Qwen-Image have them.

Loss: mean absolute error of pixels and of their horizontal and vertical differences (edges), plus beta
times the mean KL of the posterior. beta is large enough that the decoder sees noisy latents while it
trains, so that it forgives the small errors of a sampler.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, AutoencoderKLQwenImage
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.zoo.data import Pictures
from experiments.zoo.loop import train

LATENT_CHANNELS = 16
BETA = 2e-3


def flux_vae() -> AutoencoderKL:
    """FLUX's autoencoder class and latent geometry (factor 8, 16 channels), 1.5 M parameters."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 16, 48, 96),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=64,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def qwen_vae() -> AutoencoderKLQwenImage:
    """Qwen-Image's causal video autoencoder class, 3 M parameters."""
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 6, 10],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )


def skip_causal_padding(vae: nn.Module) -> None:
    """Let every causal 3-D convolution of a single frame run as the 2-D one that it is.

    A single frame is padded with zero frames before it, so only the last temporal slice of the kernel acts;
    training costs a third. The weights are untouched.
    """

    def forward(self: QwenImageCausalConv3d, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        if x.shape[2] != 1 or cache_x is not None:
            return QwenImageCausalConv3d.forward(self, x, cache_x)
        left, right, top, bottom = self._padding[:4]
        frame = F.pad(x[:, :, 0], (left, right, top, bottom))
        return F.conv2d(frame, self.weight[:, :, -1], self.bias, self.stride[1:]).unsqueeze(2)

    for module in vae.modules():
        if isinstance(module, QwenImageCausalConv3d):
            module.forward = forward.__get__(module)


def _edges(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 1:, :] - x[..., :-1, :], x[..., :, 1:] - x[..., :, :-1]


def train_vae(vae: Any, pictures: Pictures, folder: Path, steps: int, batch: int, lr: float) -> dict:
    """Train ``vae`` on all pictures the generator may see; returns final losses."""
    video = isinstance(vae, AutoencoderKLQwenImage)
    images = pictures.images * 2 - 1
    if video:
        images = images.unsqueeze(2)
        skip_causal_padding(vae)

    def loss_fn(step: int, generator: torch.Generator):
        index = torch.randint(len(images), (batch,), generator=generator)
        x = images[index]
        x = torch.where(
            torch.rand(batch, generator=generator).view(-1, *[1] * (x.ndim - 1)) < 0.3, x.flip(-1), x
        )
        posterior = vae.encode(x).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator)
        y = vae.decode(posterior.mean + posterior.std * noise).sample
        l1 = (x - y).abs().mean()
        edges = sum((a - b).abs().mean() for a, b in zip(_edges(x), _edges(y), strict=True))
        kl = 0.5 * (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean()
        numbers = {"l1": l1.item(), "kl": kl.item(), "std": posterior.std.mean().item()}
        return l1 + 0.5 * edges + BETA * kl, numbers

    return train(vae, loss_fn, folder=folder, steps=steps, lr=lr, seed=1)


@torch.no_grad()
def encode_all(vae: Any, pictures: Pictures, batch: int = 128) -> Tensor:
    """Posterior means (N, 16, 8, 8) of all pictures, unscaled."""
    means = []
    for images in (pictures.images * 2 - 1).split(batch):
        x = images.unsqueeze(2) if isinstance(vae, AutoencoderKLQwenImage) else images
        mean = vae.encode(x).latent_dist.mean
        means.append(mean.squeeze(2) if mean.ndim == 5 else mean)
    return torch.cat(means)
