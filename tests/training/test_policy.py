"""Policies in training: the reference, LoRA, the moving average, and what is saved."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import CAPTIONS, build_flux, build_qwen_image
from core_problems import relative
from small_trainer import RECIPE, make, weights
from torch import Tensor

from repro.models import load
from repro.training.policy import Policy


@pytest.mark.parametrize(("rank", "rate"), [(0, 1e-3), (2, 3e-2)])
def test_kl_is_nothing_at_the_reference_and_pulls_back_later(flux, rank, rate):
    recipe = replace(RECIPE, lora_rank=rank, learning_rate=rate)
    free, with_kl = make(flux, recipe), make(flux, replace(recipe, kl_weight=100.0))
    start = velocity_of(free.policy.backbone)
    for trainer in (free, with_kl):
        trainer.metrics = [trainer.step().metrics for _ in range(4)]
    assert with_kl.metrics[0]["loss"] == pytest.approx(free.metrics[0]["loss"], abs=1e-5)
    assert with_kl.metrics[0]["reference_forwards"] == 4 * 8
    moved, held = (relative(velocity_of(t.policy.backbone), start) for t in (free, with_kl))
    assert held < 0.8 * moved


def test_a_policy_without_reference_says_so(flux):
    policy = Policy(load(flux))
    with pytest.raises(ValueError, match="keeps no reference"), policy.reference():
        pass


@pytest.mark.parametrize("build", [build_flux, build_qwen_image])
def test_lora_trains_adapters_alone_and_the_stock_pipeline_loads_them(build, tmp_path):
    folder = build(tmp_path / "model")
    trainer = make(folder, replace(RECIPE, lora_rank=2, scheme="jagg", learning_rate=1e-2))
    base = {n: p.clone() for n, p in trainer.policy.backbone.transformer.named_parameters()}
    trainer.step()
    changed = {
        n for n, p in trainer.policy.backbone.transformer.named_parameters() if not torch.equal(p, base[n])
    }
    assert changed and all("lora_" in name for name in changed)
    adapter = trainer.policy.save(tmp_path / "adapter")
    stock = load(folder)
    stock.pipeline.load_lora_weights(adapter)
    assert torch.equal(velocity_of(stock), velocity_of(trainer.policy.backbone))


def test_adapters_are_float32_on_a_bfloat16_network(flux):
    trainer = make(flux, replace(RECIPE, lora_rank=2, precision="bfloat16"))
    before = weights(trainer)
    metrics = trainer.step().metrics
    assert trainer.policy.backbone.dtype == torch.bfloat16
    assert {p.dtype for p in trainer.policy.parameters} == {torch.float32}
    assert metrics["fault"] is None
    assert not torch.equal(weights(trainer), before)


def velocity_of(backbone) -> Tensor:
    noise = torch.randn(1, *backbone.latent_shape(), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return backbone.velocity(noise, 0.5, backbone.encode([CAPTIONS[0]]))


def test_a_trained_policy_is_a_stock_diffusers_folder(flux, tmp_path):
    trainer = make(flux)
    trainer.step()
    saved = load(trainer.policy.save(tmp_path / "trained"))  # through FluxPipeline.from_pretrained
    assert torch.equal(velocity_of(saved), velocity_of(trainer.policy.backbone))
    assert (saved.height, saved.max_sequence_length) == (64, 12)
    assert not torch.equal(velocity_of(saved), velocity_of(load(flux)))


def test_the_moving_average_is_what_is_saved(flux, tmp_path):
    trainer = make(flux, replace(RECIPE, ema=0.5))
    seen = []
    for _ in range(3):
        trainer.step()
        seen.append(weights(trainer))
    expected = seen[0]
    for value in seen[1:]:
        expected = 0.5 * expected + 0.5 * value
    with trainer.policy.averaged():
        assert torch.allclose(weights(trainer), expected, atol=1e-7)
    assert torch.equal(weights(trainer), seen[-1])
