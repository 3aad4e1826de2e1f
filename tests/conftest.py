"""Tiny, randomly initialised checkpoints in the real formats, made once a session.

The builders are plain functions: they show, in the smallest form, how a folder must look for the stock
classes (and so for `repro`) to read it. The weights are random: what the tests check is plumbing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import repro

# Nothing in the tests may reach for the hub; must be set before huggingface_hub is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

# The same examples on every machine, so that a red run is a change of ours; `--hypothesis-profile=explore`
# looks for new ones. No deadline: the first call may be slow on a busy machine.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("fixed")

CAPTIONS = (
    "grinning face",
    "face with tears of joy",
    "red heart",
    "dog face",
    "noto cat face",
    "twemoji thumbs up",
    "rocket",
    "slice of pizza",
    "birthday cake",
    "red apple",
)
SIZE = 64
MAX_SEQUENCE_LENGTH = 12


def build_flux(folder: Path, *, guidance_embeds: bool = False, dynamic_shifting: bool = False) -> Path:
    """A random FluxPipeline folder: 64x64 images, VAE factor 8, 16 latent channels, 16 image tokens."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    from experiments.zoo.tokenizers import build_clip_tokenizer, build_t5_tokenizer

    torch.manual_seed(0)
    clip_tokenizer = build_clip_tokenizer(CAPTIONS, vocab_size=600)
    t5_tokenizer = build_t5_tokenizer(CAPTIONS, vocab_size=300)
    clip = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(clip_tokenizer),
            hidden_size=24,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=clip_tokenizer.model_max_length,
            projection_dim=24,
            bos_token_id=clip_tokenizer.bos_token_id,
            eos_token_id=clip_tokenizer.eos_token_id,
            pad_token_id=clip_tokenizer.pad_token_id,
        )
    )
    t5 = T5EncoderModel(
        T5Config(
            vocab_size=len(t5_tokenizer),
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=1,
            num_heads=2,
            feed_forward_proj="gated-gelu",
            is_encoder_decoder=False,
        )
    )
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=64,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=24,
        guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 6, 6),
    )
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=4,
        sample_size=SIZE,
        scaling_factor=0.36,
        shift_factor=0.12,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=dynamic_shifting),
        vae=vae,
        text_encoder=clip,
        tokenizer=clip_tokenizer,
        text_encoder_2=t5,
        tokenizer_2=t5_tokenizer,
        transformer=transformer,
    ).save_pretrained(folder)
    return _write_card(folder)


def build_qwen_image(folder: Path) -> Path:
    """A random QwenImagePipeline folder: 64x64 images, VAE factor 8, 16 latent channels, 16 image tokens."""
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from experiments.zoo.tokenizers import build_qwen_tokenizer

    torch.manual_seed(0)
    tokenizer = build_qwen_tokenizer(CAPTIONS, vocab_size=600)
    token_id = tokenizer.convert_tokens_to_ids
    text_encoder = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "max_position_embeddings": 2048,
                # half the head's 16 dimensions, shared out among time, height and width
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [2, 3, 3],
                },
                "bos_token_id": token_id("<|endoftext|>"),
                "eos_token_id": token_id("<|im_end|>"),
                "pad_token_id": token_id("<|endoftext|>"),
            },
            # never run for text to image, but part of the class: one layer, as small as it goes
            vision_config={
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 1,
                "out_hidden_size": 32,
                "fullatt_block_indexes": [0],
            },
            image_token_id=token_id("<|image_pad|>"),
            video_token_id=token_id("<|video_pad|>"),
            vision_start_token_id=token_id("<|vision_start|>"),
            vision_end_token_id=token_id("<|vision_end|>"),
            tie_word_embeddings=True,
        )
    )
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=64,
        out_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    vae = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=16,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=torch.linspace(-0.5, 0.5, 16).tolist(),
        latents_std=torch.linspace(0.8, 2.0, 16).tolist(),
    )
    QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        transformer=transformer,
    ).save_pretrained(folder)
    return _write_card(folder)


def _write_card(folder: Path) -> Path:
    card = {"max_sequence_length": MAX_SEQUENCE_LENGTH, "height": SIZE, "width": SIZE}
    (folder / "repro_card.json").write_text(json.dumps(card))
    return folder


def build_hpsv2(folder: Path, *, image_size: int = SIZE) -> Path:
    """A random HPSv2-style folder: open_clip's config and tokenizer, and a .pt with a state_dict."""
    import open_clip

    from experiments.zoo.tokenizers import build_clip_tokenizer

    torch.manual_seed(0)
    tokenizer = build_clip_tokenizer(CAPTIONS, vocab_size=2000, max_length=16)
    model_config = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": image_size, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
        "text_cfg": {
            "context_length": 16,
            "vocab_size": len(tokenizer),
            "width": 32,
            "heads": 2,
            "layers": 2,
            "hf_tokenizer_name": "tokenizer.json",
        },
    }
    preprocess_config = {"mean": [0.5, 0.45, 0.4], "std": [0.3, 0.25, 0.2]}
    tokenizer.save_pretrained(folder)
    config = {"model_cfg": model_config, "preprocess_cfg": preprocess_config}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.save({"state_dict": open_clip.CLIP(**model_config).state_dict()}, folder / "hpsv2.pt")
    return folder


def build_clip(folder: Path) -> Path:
    """A random PickScore- or CLIPScore-style folder: transformers' CLIPModel and CLIPProcessor."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

    from experiments.zoo.tokenizers import build_clip_tokenizer

    torch.manual_seed(0)
    tokenizer = build_clip_tokenizer(CAPTIONS, vocab_size=2000, max_length=16)
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={
            **tower,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": tokenizer.model_max_length,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={**tower, "image_size": SIZE, "patch_size": 8},
        projection_dim=32,
    )
    image_processor = CLIPImageProcessor(
        size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}
    )
    CLIPModel(config).save_pretrained(folder)
    CLIPProcessor(image_processor=image_processor, tokenizer=tokenizer).save_pretrained(folder)
    return folder


ZOO = Path(repro.__file__).parent / "zoo"
MODELS = {"random-flux": build_flux, "random-qwen-image": build_qwen_image}


def bundled(*names: str) -> list[str]:
    """Those of the names that this tree ships, complete."""
    index = ("model_index.json", "open_clip_config.json", "config.json")
    return [name for name in names if any((ZOO / name / file).exists() for file in index)]


@pytest.fixture(scope="session", params=[*MODELS, *bundled("tiny-flux", "tiny-qwen-image")])
def model_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diffusers folder of either family, random or bundled."""
    if request.param in MODELS:
        return MODELS[request.param](tmp_path_factory.mktemp("models") / request.param)
    return ZOO / request.param


@pytest.fixture(scope="session")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random FluxPipeline folder."""
    return build_flux(tmp_path_factory.mktemp("models") / "random-flux")
