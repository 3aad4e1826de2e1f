"""Backbones against the stock pipelines they wrap: the same latents and pictures, nothing else touched."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import build_flux

from repro.core.rollout import sample
from repro.core.sde import ODE, shifted_sigmas
from repro.models import Backbone, Conditioning, bind, load

PROMPTS = ["red apple", "face with tears of joy", "dog face"]  # of different lengths, so that masks matter
STEPS = 4


@pytest.fixture(scope="session")
def backbone(model_folder: Path) -> Backbone:
    backbone = load(str(model_folder))
    backbone.pipeline.set_progress_bar_config(disable=True)
    return backbone


def _noise(backbone: Backbone, n: int = len(PROMPTS)) -> torch.Tensor:
    return torch.randn(n, *backbone.latent_shape(), generator=torch.Generator().manual_seed(1))


def _stock(
    backbone: Backbone, noise: torch.Tensor, guidance: float = 1.0, output_type: str = "latent", **kwargs
):
    """A stock call of the pipeline, from the same noise."""
    if guidance > 1:
        kwargs["negative_prompt"] = [backbone.default_negative] * len(PROMPTS)
    return backbone.pipeline(
        PROMPTS,
        latents=noise,
        height=backbone.height,
        width=backbone.width,
        num_inference_steps=STEPS,
        true_cfg_scale=guidance,
        max_sequence_length=backbone.max_sequence_length,
        output_type=output_type,
        **kwargs,
    ).images


def _euler(backbone: Backbone, noise: torch.Tensor, guidance: float = 1.0) -> torch.Tensor:
    """z <- z + (sigma_next - sigma) v over the scheduler's own sigmas."""
    conditioning = backbone.encode(PROMPTS, negative=guidance > 1)
    scheduler = backbone.pipeline.scheduler
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / STEPS, STEPS).tolist())
    latents = noise
    with torch.no_grad():
        for sigma, following in zip(scheduler.sigmas[:-1], scheduler.sigmas[1:], strict=True):
            velocity = backbone.velocity(latents, sigma, conditioning, guidance)
            latents = latents + (following - sigma) * velocity
    return latents


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_euler_with_our_velocity_is_the_stock_pipeline(backbone: Backbone, guidance: float) -> None:
    noise = _noise(backbone)
    expected = _stock(backbone, noise, guidance)
    torch.testing.assert_close(_euler(backbone, noise, guidance), expected, atol=1e-5, rtol=1e-5)


def test_noise_free_rollout_is_the_stock_pipeline(backbone: Backbone) -> None:
    noise = _noise(backbone)
    sigmas = shifted_sigmas(STEPS, backbone.pipeline.scheduler.config.shift)
    velocity = bind(backbone, backbone.encode(PROMPTS), sigmas)
    trajectory = sample(velocity, noise, sigmas, ODE(), torch.Generator())
    torch.testing.assert_close(trajectory.latents[-1], _stock(backbone, noise), atol=1e-5, rtol=1e-5)


def test_another_image_size(backbone: Backbone) -> None:
    height, width = backbone.height, backbone.width
    backbone.set_size(32, 96)
    try:
        noise = _noise(backbone)
        latents = _euler(backbone, noise)
        torch.testing.assert_close(latents, _stock(backbone, noise), atol=1e-5, rtol=1e-5)
        assert backbone.decode(latents).shape == (3, 3, 32, 96)
    finally:
        backbone.set_size(height, width)
    assert backbone.latent_shape(32, 96) == (12, 64)
    with pytest.raises(ValueError, match="multiples of 16"):
        backbone.set_size(64, 65)


def test_decode_is_the_pipelines(backbone: Backbone) -> None:
    noise = _noise(backbone)
    images = backbone.decode(_stock(backbone, noise))
    expected = torch.from_numpy(_stock(backbone, noise, output_type="np")).permute(0, 3, 1, 2)
    assert images.dtype == torch.float32 and images.shape == (3, 3, backbone.height, backbone.width)
    assert images.min() >= 0 and images.max() <= 1
    torch.testing.assert_close(images, expected, atol=1e-5, rtol=0)


def test_encode_is_deterministic_and_reads_the_prompt(backbone: Backbone) -> None:
    first, second = (backbone.encode(PROMPTS, negative=True) for _ in range(2))
    assert first.negative is not None and second.negative is not None
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, second.tensors[name])
        assert not tensor.requires_grad
        if tensor.is_floating_point():
            assert not torch.allclose(tensor[0], tensor[1]), f"{name} does not depend on the prompt"
    for name, tensor in first.negative.tensors.items():
        assert torch.equal(tensor, second.negative.tensors[name])
        assert torch.equal(tensor[0], tensor[1])
    other = backbone.encode(PROMPTS, negative="red apple").negative
    assert other is not None
    assert other.tensors["prompt_embeds"].shape[0] == len(other) == len(PROMPTS)
    with pytest.raises(ValueError, match="no prompts"):
        backbone.encode([])


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_a_batch_is_its_samples_one_by_one(backbone: Backbone, guidance: float) -> None:
    conditioning = backbone.encode(PROMPTS, negative=True)
    latents, sigma = _noise(backbone), torch.tensor([1.0, 0.6, 0.05])
    with torch.no_grad():  # rounding differs with the batch's size, and guidance multiplies it
        batch = backbone.velocity(latents, sigma, conditioning, guidance)
        for i in range(len(PROMPTS)):
            one = backbone.velocity(latents[i : i + 1], float(sigma[i]), conditioning.index([i]), guidance)
            torch.testing.assert_close(batch[i : i + 1], one, atol=1e-4, rtol=1e-4)
            alone = backbone.encode(PROMPTS[i : i + 1], negative=True)  # without the batch's padding
            one = backbone.velocity(latents[i : i + 1], sigma[i : i + 1], alone, guidance)
            torch.testing.assert_close(batch[i : i + 1], one, atol=1e-4, rtol=1e-4)
        uniform = backbone.velocity(latents, 0.5, conditioning)
    assert not torch.allclose(batch[1], uniform[1]), "sigma makes no difference"


def test_bind_stacks_steps_along_the_batch(backbone: Backbone) -> None:
    sigmas = shifted_sigmas(STEPS, 3.0)
    conditioning = backbone.encode(PROMPTS)
    velocity = bind(backbone, conditioning, sigmas)
    latents = torch.stack([_noise(backbone), 0.5 * _noise(backbone)])
    stacked = velocity([0, 2], latents)
    assert stacked.shape == latents.shape and stacked.requires_grad
    with torch.no_grad():
        for row, step in enumerate([0, 2]):
            one = backbone.velocity(latents[row], float(sigmas[step]), conditioning)
            torch.testing.assert_close(stacked[row], one, atol=1e-5, rtol=1e-5)
        assert not velocity([1], latents[:1]).requires_grad


def test_only_the_transformer_gets_gradients(backbone: Backbone) -> None:
    conditioning = backbone.encode(PROMPTS)
    backbone.velocity(_noise(backbone), 0.5, conditioning).square().sum().backward()
    try:
        named = dict(backbone.transformer.named_parameters())
        assert all(parameter.requires_grad for parameter in named.values())
        # The last block's text stream feeds nothing, in Qwen-Image; every other weight must have a gradient.
        without = [name for name, parameter in named.items() if parameter.grad is None]
        last = f"transformer_blocks.{len(backbone.transformer.transformer_blocks) - 1}."
        assert all(name.startswith(last) and ("txt" in name or "to_add_out" in name) for name in without)
    finally:
        backbone.transformer.zero_grad(set_to_none=True)
    for name, component in backbone.pipeline.components.items():
        if isinstance(component, torch.nn.Module):
            assert not component.training, name
            frozen = not any(parameter.requires_grad for parameter in component.parameters())
            assert frozen == (component is not backbone.transformer), name


def test_bfloat16_follows_the_stock_pipeline(model_folder: Path) -> None:
    backbone = load(model_folder, dtype=torch.bfloat16)
    backbone.pipeline.set_progress_bar_config(disable=True)
    noise = _noise(backbone)
    expected = _stock(backbone, noise.bfloat16())
    conditioning = backbone.encode(PROMPTS)
    scheduler = backbone.pipeline.scheduler
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / STEPS, STEPS).tolist())
    latents = noise.bfloat16()
    with torch.no_grad():
        for sigma, timestep in zip(scheduler.sigmas[:-1], scheduler.timesteps, strict=True):
            velocity = backbone.velocity(latents, sigma, conditioning)
            assert velocity.dtype == torch.bfloat16
            latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
    torch.testing.assert_close(latents, expected)


def test_conditioning_moves_all_tensors_together() -> None:
    tensors = {"a": torch.arange(6.0).view(3, 2), "mask": torch.tensor([[1], [0], [1]])}
    conditioning = Conditioning(tensors, Conditioning({"a": -tensors["a"]}))
    assert len(conditioning) == 3
    for changed, order in (
        (conditioning.repeat(2), [0, 1, 2, 0, 1, 2]),
        (conditioning.repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
        (conditioning.index([2, 0]), [2, 0]),
        (conditioning.index(torch.tensor([1])), [1]),
        (conditioning.index(slice(1, 3)), [1, 2]),
        (conditioning.to("cpu"), [0, 1, 2]),
    ):
        assert len(changed) == len(order)
        assert torch.equal(changed.tensors["a"], tensors["a"][order])
        assert torch.equal(changed.tensors["mask"], tensors["mask"][order])
        assert changed.negative is not None
        assert torch.equal(changed.negative.tensors["a"], -tensors["a"][order])


def test_distilled_guidance_is_an_input_and_not_a_second_forward(tmp_path: Path) -> None:
    backbone = load(build_flux(tmp_path / "dev", guidance_embeds=True))
    backbone.pipeline.set_progress_bar_config(disable=True)
    calls = []
    backbone.transformer.register_forward_hook(lambda *_: calls.append(1))
    noise = _noise(backbone)
    latents = _euler(backbone, noise)
    assert len(calls) == STEPS
    expected = _stock(backbone, noise, guidance_scale=3.5)
    torch.testing.assert_close(latents, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(latents, _stock(backbone, noise, guidance_scale=1.0))
    backbone.embedded_guidance = 1.0
    torch.testing.assert_close(
        _euler(backbone, noise), _stock(backbone, noise, guidance_scale=1.0), atol=1e-5, rtol=1e-5
    )


def test_a_local_folder_needs_no_network(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    def refuse(*_: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    backbone = load(model_folder)
    assert repr(backbone).endswith("64x64)")
    assert backbone.encode(["red apple"]).tensors["prompt_embeds"].shape[0] == 1


def test_velocity_says_what_does_not_fit(backbone: Backbone) -> None:
    conditioning, noise = backbone.encode(PROMPTS), _noise(backbone)
    for message, arguments in {
        r"latents are \(3, 9, 64\)": (noise[:, :9], 0.5, conditioning),
        "3 latents but 1 conditionings": (noise, 0.5, conditioning.index([0])),
        "needs encode": (noise, 0.5, conditioning, 2.0),
        "at least 1": (noise, 0.5, conditioning, 0.5),
    }.items():
        with pytest.raises(ValueError, match=message):
            backbone.velocity(*arguments)


def test_load_says_in_one_line_what_is_wrong(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model_index.json").write_text(
        json.dumps({"_class_name": "StableDiffusionPipeline"})
    )
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "model_index.json").write_text("{")
    shutil.copytree(model_folder, tmp_path / "holed", ignore=shutil.ignore_patterns("*.safetensors"))
    for model, message in {
        str(tmp_path / "empty"): "no diffusers folder",
        str(
            tmp_path / "other"
        ): "is a StableDiffusionPipeline: supported are FluxPipeline, QwenImagePipeline",
        str(tmp_path / "torn"): "not valid JSON",
        str(tmp_path / "holed"): "cannot load .*holed as a",
        str(tmp_path / "nowhere"): "no model",
        "no-such-bundled-model": "bundled name, an existing path or a hub id",
        "nobody/nothing": "the hub gave no model_index.json",
    }.items():
        with pytest.raises(ValueError, match=message) as caught:
            load(model)
        assert "\n" not in str(caught.value)
