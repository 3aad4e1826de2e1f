"""A timed step: its counts are the cost model's, it leaves the policy alone, its peak memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from experiments.speedup.config import Config
from experiments.speedup.laps import ENOUGH
from experiments.speedup.memory import peak_memory
from experiments.speedup.source import load_source, make_policy
from experiments.speedup.step import Setting, Step
from repro.core.cost import CostModel
from repro.core.schemes.jagg import jagg
from repro.core.schemes.scheme import exact
from repro.distributed.ranks import ALONE
from repro.models import synthetic
from repro.training.metrics import PHASES
from repro.training.policy import Policy
from repro.training.recipe import preset


def policy(checkpointing: bool = False, lora_rank: int = 0) -> Policy:
    backbone = synthetic.build("flux-dev", torch.float32, "cpu", 64, reduced=True)
    return Policy(backbone, checkpointing=checkpointing, lora_rank=lora_rank)


@pytest.mark.parametrize("velocities", ["recompute", "rollout"])
def test_counts_are_the_cost_models_in_every_part(velocities: Any) -> None:
    setting = Setting(checkpointing=False, batch=2, anchor_chunk=4, velocities=velocities)
    recipe = replace(preset("dance_grpo"), sampling_steps=5, images=2)
    step = Step(policy(), None, ["a", "b"], recipe, setting)
    assert len(step.parts) == 2
    for scheme in (exact(step.times), jagg(step.times, 4)):
        timing = step.time(scheme)
        assert timing.counts == CostModel().counts(scheme, velocities, anchor_chunk=4)
        assert set(timing.seconds) == set(PHASES)
        assert len(timing.laps) == 1 + int(ENOUGH / timing.seconds["update"])  # repeated if it is short
        seconds = sum(lap.seconds for lap in timing.laps[0])
        assert 0 < seconds <= timing.seconds["update"] * (1 + 1e-9)  # its laps are disjoint parts of it


def test_a_step_leaves_the_policy_as_it_was() -> None:
    learner = policy(checkpointing=True, lora_rank=2)
    before = [p.detach().clone() for p in learner.backbone.transformer.parameters()]
    recipe = replace(preset("flow_grpo_fast"), images=2, weight_decay=1e-4)
    step = Step(learner, None, ["a"], recipe, Setting(algorithm="flow_grpo_fast", batch=2))
    step.unit()
    step.overhead(exact(step.times))
    step.time(exact(step.times))
    for p, was in zip(learner.backbone.transformer.parameters(), before, strict=True):
        assert torch.equal(p, was) and p.grad is None


def test_a_batch_must_divide_the_samples() -> None:
    with pytest.raises(ValueError, match="4 samples do not divide into parts of 3"):
        recipe = replace(preset("dance_grpo"), images=2)
        Step(policy(), None, ["a", "b"], recipe, Setting(batch=3))


def test_peak_memory_sees_what_was_there_for_a_moment() -> None:
    with peak_memory(torch.device("cpu")) as before:
        pass
    with peak_memory(torch.device("cpu")) as found:
        torch.ones(2**26).sum()  # 256 MiB
    if found:  # where the system tells
        assert found[0] - before[0] > 200 * 2**20


def gradient(config: Config) -> Tensor:
    """JAGG's, of one made-up step, over all weights, with checkpointing."""
    learner = make_policy(config, load_source(config), "full", True, ALONE)
    recipe = replace(preset("flow_grpo_fast"), images=2)
    setting = Setting(algorithm="flow_grpo_fast", batch=2)
    step = Step(learner, None, ["a"], recipe, setting, optimizer=False)
    (part,) = step.parts
    trajectory = step._sample(part)
    step._accumulate(
        jagg(step.times, 4), trajectory, torch.tensor([1.0, -1.0]), step._velocity(part.conditioning)
    )
    return torch.cat([p.grad.flatten() for p in learner.parameters if p.grad is not None])


def test_a_compiled_network_gives_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(model="flux-dev", synthetic_weights=True, reduced=True, prompts=1, images=2)
    expected = gradient(config)
    # Without a C++ compiler: what is captured and differentiated, by eager kernels.
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_(self, backend="aot_eager"))
    counters.clear()
    found = gradient(replace(config, compile=True))
    assert counters["stats"]["unique_graphs"] > 0
    assert expected.norm() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
