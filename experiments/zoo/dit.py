"""The two diffusion transformers with their text encoders, trained together by flow matching.

A picture's latents z_0, noise n and a noise level sigma give z = (1 - sigma) z_0 + sigma n; the transformer
learns the velocity n - z_0 from (z, sigma, caption). sigma is the logistic of a Gaussian, moved by the root
of the scheduler's shift. One caption in ten is empty, so that true guidance works too. Both pipelines' own
``encode_prompt`` is called with gradients on: the text encoders have no other training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    T5Config,
    T5EncoderModel,
)

from experiments.zoo.data import Pictures
from experiments.zoo.loop import train
from experiments.zoo.tokenizers import build_clip_tokenizer, build_qwen_tokenizer, build_t5_tokenizer
from experiments.zoo.vae import LATENT_CHANNELS, encode_all

SHIFT = 3.0
MAX_SEQUENCE_LENGTH = 8
TOKENS_PER_SIDE = 4


def flux_pipeline(vae: nn.Module, captions: tuple[str, ...]) -> FluxPipeline:
    """An untrained FLUX: 2 double and 4 single blocks of width 192, CLIP and T5 encoders of two layers."""
    clip_tokenizer = build_clip_tokenizer(captions, vocab_size=1600, max_length=16)
    t5_tokenizer = build_t5_tokenizer(captions, vocab_size=1800, max_length=MAX_SEQUENCE_LENGTH)
    clip = CLIPTextConfig(
        vocab_size=len(clip_tokenizer),
        hidden_size=96,
        intermediate_size=384,
        projection_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        bos_token_id=clip_tokenizer.bos_token_id,
        eos_token_id=clip_tokenizer.eos_token_id,
        pad_token_id=clip_tokenizer.pad_token_id,
    )
    t5 = T5Config(
        vocab_size=len(t5_tokenizer),
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        is_encoder_decoder=False,
    )
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=48,
        num_attention_heads=4,
        joint_attention_dim=128,
        pooled_projection_dim=96,
        guidance_embeds=False,
        axes_dims_rope=(8, 20, 20),
    )
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        vae=vae,
        text_encoder=CLIPTextModel(clip),
        tokenizer=clip_tokenizer,
        text_encoder_2=T5EncoderModel(t5),
        tokenizer_2=t5_tokenizer,
        transformer=transformer,
    )


def qwen_pipeline(vae: nn.Module, captions: tuple[str, ...]) -> QwenImagePipeline:
    """An untrained Qwen-Image: 4 dual-stream blocks of width 160, a Qwen2.5-VL encoder of two layers."""
    tokenizer = build_qwen_tokenizer(captions, vocab_size=1800)
    token_id = tokenizer.convert_tokens_to_ids
    text = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 128,
            "intermediate_size": 320,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            "bos_token_id": token_id("<|endoftext|>"),
            "eos_token_id": token_id("<|im_end|>"),
            "pad_token_id": token_id("<|endoftext|>"),
        },
        # Part of the class, never run for text to image: as small as it goes.
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 1,
            "out_hidden_size": 128,
            "fullatt_block_indexes": [0],
        },
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=4,
        attention_head_dim=40,
        num_attention_heads=4,
        joint_attention_dim=128,
        axes_dims_rope=(8, 16, 16),
    )
    return QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        vae=vae,
        text_encoder=Qwen2_5_VLForConditionalGeneration(text),
        tokenizer=tokenizer,
        transformer=transformer,
    )


def set_latent_statistics(vae: Any, latents: Tensor) -> Tensor:
    """Store the latents' statistics where each family keeps them; return normalised latents (N, 16, 8, 8)."""
    if isinstance(vae, AutoencoderKLQwenImage):
        mean, std = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
        vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
        return (latents - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)
    shift, scale = latents.mean().item(), 1 / latents.std().item()
    vae.register_to_config(shift_factor=shift, scaling_factor=scale)
    return (latents - shift) * scale


def flux_velocity(pipe: FluxPipeline, captions: list[str], z: Tensor, sigma: Tensor) -> Tensor:
    """Velocity (B, 16 tokens, 64) at packed latents ``z`` and noise levels ``sigma`` (B,)."""
    embeds, pooled, text_ids = pipe.encode_prompt(captions, captions, max_sequence_length=MAX_SEQUENCE_LENGTH)
    image_ids = pipe._prepare_latent_image_ids(1, TOKENS_PER_SIDE, TOKENS_PER_SIDE, z.device, z.dtype)
    return pipe.transformer(
        hidden_states=z,
        encoder_hidden_states=embeds,
        pooled_projections=pooled,
        timestep=sigma,
        img_ids=image_ids,
        txt_ids=text_ids,
        return_dict=False,
    )[0]


def qwen_velocity(pipe: QwenImagePipeline, captions: list[str], z: Tensor, sigma: Tensor) -> Tensor:
    """As :func:`flux_velocity`."""
    embeds, mask = pipe.encode_prompt(captions)
    return pipe.transformer(
        hidden_states=z,
        encoder_hidden_states=embeds,
        encoder_hidden_states_mask=mask,
        timestep=sigma,
        img_shapes=[[(1, TOKENS_PER_SIDE, TOKENS_PER_SIDE)]] * len(z),
        return_dict=False,
    )[0]


def trainable(pipe: FluxPipeline | QwenImagePipeline) -> nn.ModuleDict:
    """The parts that learn here: the transformer and the text encoders; the VAE is finished."""
    names = [name for name in ("transformer", "text_encoder", "text_encoder_2") if hasattr(pipe, name)]
    return nn.ModuleDict({name: getattr(pipe, name) for name in names})


def train_dit(
    pipe: FluxPipeline | QwenImagePipeline,
    pictures: Pictures,
    folder: Path,
    steps: int,
    batch: int = 96,
    lr: float = 1.5e-3,
    snapshots: tuple[int, ...] = (),
    cycles: int = 1,
) -> dict[str, float]:
    """Train ``pipe`` in place; return the last losses."""
    velocity = flux_velocity if isinstance(pipe, FluxPipeline) else qwen_velocity
    latents = set_latent_statistics(pipe.vae, encode_all(pipe.vae, pictures))
    data = pipe._pack_latents(latents, len(latents), LATENT_CHANNELS, *latents.shape[2:])
    captions = pictures.captions
    parts = trainable(pipe).requires_grad_(True).train()

    def loss_fn(step: int, generator: torch.Generator):
        index = torch.randint(len(data), (batch,), generator=generator)
        dropped = torch.rand(batch, generator=generator) < 0.1
        text = ["" if drop else captions[i] for i, drop in zip(index.tolist(), dropped.tolist(), strict=True)]
        noise = torch.randn(batch, *data.shape[1:], generator=generator)
        u = torch.sigmoid(torch.randn(batch, generator=generator))
        sigma = SHIFT**0.5 * u / (1 + (SHIFT**0.5 - 1) * u)
        z = torch.lerp(data[index], noise, sigma.view(-1, 1, 1))
        error = (velocity(pipe, text, z, sigma) - (noise - data[index])).square().mean((1, 2))
        return error.mean(), {"high": error[sigma > 0.7].mean().item()}

    files = {step: folder / f"snapshot-{step}.pt" for step in snapshots}
    losses = train(parts, loss_fn, folder=folder, steps=steps, lr=lr, seed=2, snapshots=files, cycles=cycles)
    parts.eval().requires_grad_(False)
    return losses
