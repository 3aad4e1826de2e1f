"""A timed step: it is the Trainer's, its counts are the cost model's, it leaves the policy alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from experiments.speedup.config import EXACT, Arm, Config, Setting
from experiments.speedup.laps import ENOUGH
from experiments.speedup.measure import make_trainer, recipe_of, under
from experiments.speedup.memory import peak_memory
from experiments.speedup.source import load_source, make_policy
from experiments.speedup.step import Step
from repro.core.cost import CostModel
from repro.core.schemes import registry
from repro.distributed.ranks import ALONE
from repro.training.metrics import PHASES, Tally
from repro.training.trainer import Trainer

CONFIG = Config(model="flux-dev", synthetic_weights=True, reduced=True, prompts=2, images=4, lora_rank=2)
SHORT = Setting(algorithm="flow_grpo_fast", batch=2)


def trainer(setting: Setting = SHORT, config: Config = CONFIG, **changes: Any) -> Trainer:
    recipe = replace(recipe_of(config, setting), **changes)
    source = load_source(config)
    return make_trainer(config, source, make_policy(config, source, recipe, ALONE), recipe, ALONE)


@pytest.mark.parametrize("velocities", ["recompute", "rollout"])
def test_counts_are_the_cost_models_in_every_minibatch(velocities: Any) -> None:
    setting = Setting(checkpointing=False, batch=2, anchor_chunk=4, velocities=velocities)
    step = Step(trainer(setting, sampling_steps=5))
    assert step.minibatches == 4
    for arm in (EXACT, Arm("jagg")):
        recipe = under(step.trainer.recipe, arm)
        timing = step.time(recipe)
        assert timing.counts == CostModel().counts(recipe.full_scheme(), velocities, anchor_chunk=4)
        assert set(timing.seconds) == set(PHASES)
        assert len(timing.laps) == 1 + int(ENOUGH / timing.seconds["update"])  # repeated if it is short
        seconds = sum(lap.seconds for lap in timing.laps[0])
        assert 0 < seconds <= timing.seconds["update"] * (1 + 1e-9)  # its laps are disjoint parts of it


@pytest.mark.parametrize("name", list(registry.LABELS))
def test_what_is_timed_is_the_trainers_own_step(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same calls of the network in the same order, of the same shapes, with or without gradient."""
    monkeypatch.setattr(Step, "beside", lambda self: None)
    step = Step(trainer(Setting(batch=2), sampling_steps=9, images=4))
    recipe = under(step.trainer.recipe, Arm(name, 0.5))
    own, policy = step.trainer.under(recipe), step.trainer.policy
    velocity, calls = policy.velocity, []

    def watched(latents: Tensor, sigma: Tensor, *conditioning: Any) -> Tensor:
        calls.append(
            (tuple(latents.shape), torch.as_tensor(sigma).flatten().tolist(), torch.is_grad_enabled())
        )
        return velocity(latents, sigma, *conditioning)

    monkeypatch.setattr(policy, "velocity", watched)
    timing = step.time(recipe, repeat=False)
    timed = list(calls)
    calls.clear()
    trained = own.step().metrics
    assert calls == timed
    images = recipe.prompts * recipe.images
    for count in ("forwards", "recomputes", "backwards"):
        assert getattr(timing.counts, count) * images == trained[count]
    assert trained["fault"] is None and trained["updates"] == 1


def test_a_step_leaves_the_policy_as_it_was() -> None:
    step = Step(trainer(replace(SHORT, weights="lora"), weight_decay=1e-4))
    transformer = step.trainer.policy.backbone.transformer
    before = [p.detach().clone() for p in transformer.parameters()]
    step.unit()
    step.overhead(step.trainer.recipe)
    first = step.time(step.trainer.recipe)
    assert step.time(step.trainer.recipe).counts == first.counts
    for p, was in zip(transformer.parameters(), before, strict=True):
        assert torch.equal(p, was) and p.grad is None


def test_peak_memory_sees_what_was_there_for_a_moment() -> None:
    with peak_memory(torch.device("cpu")) as before:
        pass
    with peak_memory(torch.device("cpu")) as found:
        torch.ones(2**26).sum()  # 256 MiB
    if found:  # where the system tells
        assert found[0] - before[0] > 200 * 2**20


def gradient(config: Config) -> Tensor:
    """JAGG's, of a step over all weights, with checkpointing."""
    source, recipe = load_source(config), recipe_of(config, SHORT)
    learner = make_trainer(config, source, make_policy(config, source, recipe, ALONE), recipe, ALONE)
    jagg = under(recipe, Arm("jagg"))
    learner.under(jagg).accumulate(learner.rollout(), 0, Tally(recipe.images))
    return torch.cat([p.grad.flatten() for p in learner.policy.parameters if p.grad is not None])


def test_a_compiled_network_gives_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, prompts=1, images=2, optimizer=False)
    expected = gradient(config)
    # Without a C++ compiler: what is captured and differentiated, by eager kernels.
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_(self, backend="aot_eager"))
    counters.clear()
    found = gradient(replace(config, compile=True))
    assert counters["stats"]["unique_graphs"] > 0
    assert expected.norm() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
