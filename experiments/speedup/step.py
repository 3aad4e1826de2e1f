"""One training step, timed phase by phase, and what the cost model needs to predict its update.

A step samples trajectories, decodes and scores the images, accumulates the gradient of a scheme and lets
AdamW move the weights, with a learning rate of 0: the same arithmetic as with any other, and every repetition
finds the same weights. The samples go through in parts of `Setting.batch`.

The cost model counts in forwards. What one forward and one backward cost here is measured on their own, on
the update's own shapes:

    f = seconds of a forward without gradient, per step of a part b = (seconds of a tracked forward and its
    backward - (1 + c) f) / f        c = 1 with checkpointing, else 0

the latter beside each other, as a machine's speed changes, so that its prediction, parts * f *
price(counts), is no fit to the times it is held against. What is not the network, the core's own work, is
measured by putting z * w in the network's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.speedup.config import Setting
from experiments.speedup.laps import ENOUGH, Lap, Laps
from experiments.speedup.memory import peak_memory
from repro.core.cost import Counts
from repro.core.gradient import GradientReport, VelocityFn, accumulate_gradient
from repro.core.grpo import ClippedSurrogate
from repro.core.rollout import Trajectory, reindex, sample
from repro.core.schemes.scheme import Scheme
from repro.distributed.fsdp import shared_advantages
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.models import Conditioning, bind
from repro.rewards import Scorer
from repro.training.metrics import PHASES
from repro.training.policy import Policy
from repro.training.recipe import Recipe
from repro.training.stopwatch import Stopwatch

REPEATS = 4
"""How often the cost model's unit is measured for a round: one forward is too short to be timed alone."""


class Unit(NamedTuple):
    """What the cost model's unit costs: f in seconds, and b in forwards."""

    forward: float
    backward: float


@dataclass(frozen=True)
class Timing:
    """One step.

    Attributes:
        seconds: by phase, all of `PHASES`. counts: of the update, for one part. backward_calls: likewise.
            peak_memory: bytes during the update: the device's, or this process's on a CPU; None where
            unknown. laps: the update's (`experiments.speedup.laps`), and those of its repetitions, which
            count towards no phase.
    """

    seconds: dict[str, float]
    counts: Counts
    backward_calls: int
    peak_memory: int | None
    laps: list[list[Lap]]


@dataclass(frozen=True, eq=False)
class Part:
    """Samples that go through the network together: what they start from, and what is learned from them."""

    conditioning: Conditioning
    noise: Tensor


class Step:
    """A training step that can be repeated.

    Args:
        policy: in the mode that `setting` asks for.
        scorer: of images, or None to draw random advantages (a random model's images say nothing).
        prompts: one group of `recipe.images` each; this rank takes its part of them.
        recipe: sampler and trained steps.
        setting: see there; its batch must divide the number of samples.
        seed: of noise, window and random advantages.
        optimizer: whether AdamW takes a step.
        ranks: who shares the samples; the policy's.

    Raises:
        ValueError: if the batch does not divide the rank's samples, or the ranks all samples.
    """

    def __init__(
        self,
        policy: Policy,
        scorer: Scorer | None,
        prompts: Sequence[str],
        recipe: Recipe,
        setting: Setting,
        seed: int = 0,
        optimizer: bool = True,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self.scorer, self.recipe, self.setting = policy, scorer, recipe, setting
        self.ranks = ranks
        mine = ranks.parts(len(prompts), recipe.images, "prompts per step")
        images = len(mine[0][1])
        total = len(mine) * images
        if total % setting.batch:
            raise InputError(
                f"{total} samples do not divide into parts of {setting.batch}: choose another batch"
            )
        own = [prompts[i] for i, _ in mine]
        self.prompts = [prompt for prompt in own for _ in range(images)]
        self._generator = torch.Generator().manual_seed(seed)
        self.noisy = recipe.noisy_steps(self._generator)
        self._sigmas = recipe.sigmas
        self._kernels = recipe.kernels(self.noisy)
        noise = torch.randn(len(prompts), *policy.latent_shape(), generator=self._generator)
        noise = noise[[i for i, _ in mine]].repeat_interleave(images, dim=0).to(policy.device)
        self._generator.manual_seed(seed + ranks.rank)  # the images of one prompt differ on other ranks, too
        conditioning = policy.encode(own, negative=recipe.guidance > 1)
        conditioning = conditioning.repeat_interleave(images)
        parts = [slice(i, i + setting.batch) for i in range(0, total, setting.batch)]
        self.parts = [Part(conditioning.index(p), noise[p]) for p in parts]
        self._optimizer = (
            torch.optim.AdamW(policy.parameters, lr=0.0, weight_decay=recipe.weight_decay)
            if optimizer
            else None
        )

    @property
    def times(self) -> Tensor:
        """(n,), sigma at the trained steps."""
        return self._sigmas[self.noisy.start : self.noisy.stop]

    def time(self, scheme: Scheme, repeat: bool = True) -> Timing:
        """Take the step with `scheme` over the trained steps; `repeat` an update that is too short."""
        clock = Stopwatch(self.policy.device)
        with clock("rollout"):
            trajectories = [self._sample(part) for part in self.parts]
        advantages = self._advantages(trajectories, clock)
        of_laps: list[list[Lap]] = []

        def update() -> GradientReport:
            first = self.parts[0]
            with Laps(clock, self._velocity(first.conditioning), first.noise.unsqueeze(0)) as laps:
                for part, trajectory, gain in zip(self.parts, trajectories, advantages, strict=True):
                    velocity = laps.watched(self._velocity(part.conditioning))
                    report = self._accumulate(scheme, trajectory, gain, velocity)
            of_laps.append(laps.laps)
            return report

        with peak_memory(self.policy.device) as memory, clock("update"):
            report = update()
        # Of ranks, which sharded passes keep in step, one decides.
        repetitions = self.ranks.on_main(lambda: int(ENOUGH / clock.seconds["update"]))
        for _ in range(repetitions if repeat else 0):
            with clock("repetition"):
                update()
        with clock("optimizer"):
            torch.nn.utils.clip_grad_norm_(self.policy.parameters, self.recipe.max_grad_norm)
            if self._optimizer is not None:
                self._optimizer.step()
            self._drop_gradients()
        seconds = {phase: clock.seconds.get(phase, 0.0) for phase in PHASES}
        peak = memory[0] if memory else None
        return Timing(seconds, report.counts, report.backward_calls, peak, of_laps)

    def unit(self) -> Unit:
        """Measure f and b on a part's shapes: medians over `REPEATS`, taken in turn."""
        part, m = self.parts[0], self.setting.anchor_chunk
        velocity = self._velocity(part.conditioning)
        steps = list(range(min(m, len(self.noisy))))
        latents = part.noise.expand(len(steps), *part.noise.shape)

        def seconds(backward: bool) -> float:
            clock = Stopwatch(self.policy.device)
            with clock("once"), torch.set_grad_enabled(backward):
                v = velocity(steps, latents)
                if backward:
                    torch.autograd.backward(v, torch.ones_like(v))
            return clock.seconds["once"] / len(steps)

        seconds(backward=True)  # an update's backwards add to gradients that are there
        forwards, ratios = [seconds(backward=False)], []
        for _ in range(REPEATS):
            tracked = seconds(backward=True)
            forwards.append(seconds(backward=False))
            ratios.append(2 * tracked / (forwards[-2] + forwards[-1]))
        self._drop_gradients()
        passes = 2 if self.setting.checkpointing else 1
        # A forward that is all overhead can come out dearer than its backward.
        return Unit(median(forwards), max(0.0, median(ratios) - passes))

    def overhead(self, scheme: Scheme) -> float:
        """Seconds of an update in which the network is z * w: what the core itself costs."""
        trajectories = [self._constant(part) for part in self.parts]
        gains = torch.ones(self.setting.batch, device=self.policy.device)
        weight = torch.ones((), device=self.policy.device, requires_grad=True)
        clock = Stopwatch(self.policy.device)
        with clock("update"):
            for trajectory in trajectories:
                self._accumulate(scheme, trajectory, gains, lambda steps, latents: latents * weight)
        return clock.seconds["update"]

    def _velocity(self, conditioning: Conditioning) -> VelocityFn:
        return reindex(bind(self.policy, conditioning, self._sigmas, self.recipe.guidance), list(self.noisy))

    def _sample(self, part: Part) -> Trajectory:
        velocity = bind(self.policy, part.conditioning, self._sigmas, self.recipe.guidance)
        return sample(velocity, part.noise, self._sigmas, self._kernels, self._generator)

    def _constant(self, part: Part) -> Trajectory:
        """A trajectory in the right shapes that no network was needed for."""
        return sample(lambda steps, z: z, part.noise, self._sigmas, self._kernels, self._generator)

    def _advantages(self, trajectories: list[Trajectory], clock: Stopwatch) -> list[Tensor]:
        with clock("decode"):
            images = torch.cat([self.policy.decode(trajectory.final) for trajectory in trajectories])
        if self.scorer is None:
            advantages = torch.randn(len(self.prompts), generator=self._generator).to(self.policy.device)
            return list(advantages.split(self.setting.batch))
        with clock("reward"):
            rewards = self.scorer(images, self.prompts)
            advantages = shared_advantages(rewards, self.recipe.images, self.ranks)
        return list(advantages.to(self.policy.device).split(self.setting.batch))

    def _accumulate(
        self, scheme: Scheme, trajectory: Trajectory, advantages: Tensor, velocity: VelocityFn
    ) -> GradientReport:
        steps = list(self.noisy)
        return accumulate_gradient(
            scheme,
            velocity,
            ClippedSurrogate.from_trajectory(trajectory, steps, advantages, self.recipe.clip_range),
            trajectory.trained(steps).latents,
            rollout=trajectory.cache(steps) if self.setting.velocities == "rollout" else None,
            policy_version=0,
            anchor_chunk=self.setting.anchor_chunk,
            checkpointing=self.setting.checkpointing,
        )

    def _drop_gradients(self) -> None:
        for parameter in self.policy.parameters:
            parameter.grad = None
