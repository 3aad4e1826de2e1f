"""The training loop where a scorer fails, a gradient is not finite, or rewards are equal."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_trainer import RECIPE, make, redness, weights
from torch import Tensor

from repro.training.metrics import StepRecord
from repro.training.trainer import train


def failing(steps: set[int], how: str):
    """A scorer that fails at some calls (two a step, one per prompt)."""
    calls = 0

    def score(images: Tensor, prompts: list[str]) -> Tensor:
        nonlocal calls
        calls += 1
        if calls in steps:
            if how == "raises":
                raise RuntimeError("server\nis down")
            return torch.full((len(images),), float(how))
        return redness(images, prompts)

    return score


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raises", "scorer redness raised RuntimeError: server is down"),
        ("nan", "finite numbers"),
        ("inf", "finite"),
    ],
)
def test_a_failing_scorer_skips_the_step(flux, how, text):
    trainer = make(flux, scorer=failing({3}, how))
    trainer.step()
    before = weights(trainer)
    metrics = trainer.step().metrics
    assert text in metrics["fault"] and "\n" not in metrics["fault"]
    assert metrics["updates"] == 0 and math.isnan(metrics["reward_mean"]) and metrics["backwards"] == 0
    assert torch.equal(weights(trainer), before) and trainer.done == 2 and trainer.version == 1
    assert trainer.step().metrics["fault"] is None
    assert bool(weights(trainer).isfinite().all())


def test_a_gradient_that_is_not_finite_skips_the_update(flux):
    trainer = make(flux)
    before = weights(trainer)
    hook = trainer.policy.parameters[0].register_hook(lambda grad: grad * math.inf)
    metrics = trainer.step().metrics
    assert "the gradient's norm is" in metrics["fault"] and metrics["updates"] == 0
    assert torch.equal(weights(trainer), before)
    hook.remove()
    assert trainer.step().metrics["fault"] is None
    assert bool(weights(trainer).isfinite().all())


def test_training_stops_with_the_reason_after_faults_in_a_row(flux):
    trainer = make(flux, replace(RECIPE, fault_limit=2), scorer=failing({1, 3, 4, 5, 6, 7}, "raises"))
    records: list[StepRecord] = []
    with pytest.raises(ValueError, match="stopped after 2 steps in a row .* server is down") as caught:
        train(trainer, 10, record=records.append)
    assert len(records) == 2 and "\n" not in str(caught.value)


def test_equal_rewards_move_nothing(flux):
    trainer = make(
        flux, replace(RECIPE, weight_decay=0.0), scorer=lambda images, prompts: [0.5] * len(images)
    )
    before = weights(trainer)
    metrics = trainer.step().metrics
    assert metrics["silent_prompts"] == 2 and metrics["grad_norm"] == 0 and metrics["fault"] is None
    assert torch.equal(weights(trainer), before)
