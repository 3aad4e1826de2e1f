"""FLUX.1-dev's and Qwen-Image's true architectures with random weights, for timing and counting.

How long a step takes does not depend on the values, so nothing is downloaded: transformer and VAE are built
at full size with random weights, prompts become random embeddings as long as the real ones, and there are no
text encoders. What such a model draws is noise, and so are its rewards. `reduced` keeps the layers' kinds and
shrinks everything else, to try on a CPU what is meant for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repro.errors import InputError
from repro.models.base import Backbone
from repro.models.flux import Flux
from repro.models.qwen_image import QwenImage

GIB = 2**30


class SyntheticFlux(Flux):
    """FLUX without text encoders; see `build`."""

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        config = self.pipeline.transformer.config
        n, length = len(prompts), self.max_sequence_length
        return {
            "prompt_embeds": _random(self, n, length, config.joint_attention_dim),
            "pooled_prompt_embeds": _random(self, n, config.pooled_projection_dim),
        }


class SyntheticQwenImage(QwenImage):
    """Qwen-Image without its text encoder; see `build`."""

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        width = self.pipeline.transformer.config.joint_attention_dim
        return {"prompt_embeds": _random(self, len(prompts), self.max_sequence_length, width)}


def _random(backbone: Backbone, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(backbone.device, backbone.dtype)


@dataclass(frozen=True)
class Architecture:
    """One model's sizes.

    Attributes:
        adapter: the backbone's class.
        transformer, vae: diffusers' class and its arguments, beyond its defaults.
        text: names of the pipeline's text components, which stay empty.
        prompt_tokens: length of a prompt's embedding: FLUX pads to 512; Qwen-Image does not pad, and 64
            stands for a usual prompt.
    """

    adapter: type[Backbone]
    transformer: tuple[str, dict[str, Any]]
    vae: tuple[str, dict[str, Any]]
    text: tuple[str, ...]
    prompt_tokens: int


_FLUX_VAE = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "latent_channels": 16,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
ARCHITECTURES = {
    # FluxTransformer2DModel's and QwenImageTransformer2DModel's defaults are these models' sizes.
    "flux-dev": Architecture(
        SyntheticFlux,
        ("FluxTransformer2DModel", {"guidance_embeds": True}),
        ("AutoencoderKL", _FLUX_VAE),
        ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"),
        512,
    ),
    "qwen-image": Architecture(
        SyntheticQwenImage,
        ("QwenImageTransformer2DModel", {}),
        ("AutoencoderKLQwenImage", {}),
        ("text_encoder", "tokenizer"),
        64,
    ),
}
_NARROW = {
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "axes_dims_rope": (4, 6, 6),
    "num_layers": 2,
}
_REDUCED = {
    "flux-dev": (
        {**_NARROW, "num_single_layers": 2, "pooled_projection_dim": 24},
        {"block_out_channels": (8, 8, 8, 8), "layers_per_block": 1, "norm_num_groups": 4},
    ),
    "qwen-image": (_NARROW, {"base_dim": 8, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}),
}


def build(
    name: str,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cuda",
    size: int = 720,
    reduced: bool = False,
    seed: int = 0,
) -> Backbone:
    """A backbone of random weights.

    Args:
        name: "flux-dev" or "qwen-image".
        dtype: of all weights.
        device: where they are made.
        size: height and width in pixels; 720 in the early code.
        reduced: two blocks of a kind, 32 channels wide, prompts of 16 tokens.
        seed: of the weights.

    Raises:
        ValueError: an unknown name, or the full size on a CPU.
    """
    check(name, dtype, device, reduced)
    import diffusers

    architecture = ARCHITECTURES[name]
    torch.manual_seed(seed)
    with torch.device(device), _default_dtype(dtype):
        transformer, vae = _modules(name, reduced)
    pipeline = architecture.adapter.pipeline_class()(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        transformer=transformer,
        **dict.fromkeys(architecture.text),
    )
    tokens = 16 if reduced else architecture.prompt_tokens
    return architecture.adapter(pipeline, f"{name}-synthetic", size, size, tokens)


def check(name: str, dtype: torch.dtype, device: torch.device | str, reduced: bool) -> None:
    """Refuse what `build` cannot make: ValueError for an unknown name, or the full size on a CPU."""
    if name not in ARCHITECTURES:
        raise InputError(f"no synthetic weights for {name}: pass --model {' or '.join(ARCHITECTURES)}")
    if torch.device(device).type == "cpu" and not reduced:
        weights = weight_bytes(name, dtype) / GIB
        raise InputError(
            f"{name} at full size needs {weights:.0f} GiB of memory for its weights in {str(dtype)[6:]}, as "
            "much again for gradients, and hours a step on a CPU: pass --device cuda, or --reduced to try it"
        )


def weight_bytes(name: str, dtype: torch.dtype) -> int:
    """Memory of a full-size model's weights, transformer and VAE, without making them."""
    with torch.device("meta"):
        modules = _modules(name, reduced=False)
    return sum(p.numel() for module in modules for p in module.parameters()) * dtype.itemsize


def _modules(name: str, reduced: bool) -> tuple[nn.Module, nn.Module]:
    import diffusers

    architecture = ARCHITECTURES[name]
    smaller = _REDUCED[name] if reduced else ({}, {})
    transformer, vae = (
        getattr(diffusers, cls)(**{**arguments, **less})
        for (cls, arguments), less in zip((architecture.transformer, architecture.vae), smaller, strict=True)
    )
    return transformer, vae


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
