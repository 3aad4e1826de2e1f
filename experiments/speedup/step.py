"""One training step of the Trainer's, timed by phase, and what the cost model needs to predict its update.

What is timed is `Trainer.rollout`, `accumulate` and `apply`: the batches and passes of training, of images of
one prompt, `Setting.batch` of them together. Only the learning rate is another, so small that float32 has it
as zero: the same arithmetic, and every repetition finds the same weights.

The cost model counts in forwards. What one forward and one backward cost here is measured on their own, on
the update's own shapes:

    f = seconds of a forward without gradient, per step of a minibatch
    b = (seconds of a tracked forward and its backward - (1 + c) f) / f    c = 1 with checkpointing, else 0

the latter beside each other, as a machine's speed changes, so that its prediction, minibatches * f *
price(counts), is no fit to the times it is held against. What is not the network, the core's own work, is
measured by putting z * w in the network's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR

from experiments.speedup.laps import ENOUGH, Lap, Laps
from experiments.speedup.memory import peak_memory
from repro.core.cost import Counts
from repro.core.gradient import GradientReport
from repro.core.rollout import sample
from repro.errors import InputError
from repro.training.guard import Fault
from repro.training.metrics import PHASES, Tally
from repro.training.recipe import Recipe
from repro.training.stopwatch import Stopwatch
from repro.training.trainer import Optimizer, Trainer

REPEATS = 4
"""How often the cost model's unit is measured for a round: one forward is too short to be timed alone."""
NO_RATE = 1e-60
"""A learning rate above zero, which float32 does not tell from it."""


class Unit(NamedTuple):
    """What the cost model's unit costs: f in seconds, and b in forwards."""

    forward: float
    backward: float


@dataclass(frozen=True)
class Timing:
    """One step.

    Attributes:
        seconds: by phase, all of `PHASES`. counts: of the update, for one minibatch. backward_calls:
            likewise. peak_memory: bytes during the update: the device's, or this process's on a CPU; None
            where unknown. laps: the update's (`experiments.speedup.laps`), and those of its repetitions,
            which count towards no phase.
    """

    seconds: dict[str, float]
    counts: Counts
    backward_calls: int
    peak_memory: int | None
    laps: list[list[Lap]]


class Step:
    """A training step that can be repeated: the trainer's count of steps stays where it is.

    Args:
        trainer: with learning rate `NO_RATE`; its recipe says what is equal for all that is timed.

    Attributes:
        minibatches: of an update on one rank.

    Raises:
        ValueError: if nothing can be learned from the step.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        try:
            self._experiences = trainer.rollout()
        except Fault as fault:
            raise InputError(f"a step cannot be timed: {fault}") from None
        chosen = [minibatch for minibatch, _ in trainer.minibatches(self._experiences, 0)]
        self.minibatches, self._first = len(chosen), chosen[0]

    def time(self, recipe: Recipe, repeat: bool = True) -> Timing:
        """Take the step under `recipe`; `repeat` an update that is too short.

        Raises:
            ValueError: if nothing can be learned from the step.
        """
        try:
            return self._time(self.trainer.under(recipe), repeat)
        except Fault as fault:
            raise InputError(f"a step cannot be timed: {fault}") from None
        finally:
            self._drop_gradients()

    def _time(self, trainer: Trainer, repeat: bool) -> Timing:
        clock = Stopwatch(trainer.policy.device)
        with clock("rollout"):
            experiences = trainer.rollout(clock)
        tallies: list[Tally] = []
        of_laps: list[list[Lap]] = []

        def update() -> GradientReport:
            tallies.append(Tally(trainer.recipe.images))
            with Laps(clock, self.beside, trainer.policy.device) as laps:
                reports = trainer.accumulate(experiences, 0, tallies[-1], laps.watched)
            of_laps.append(laps.laps)
            return reports[0]

        with peak_memory(trainer.policy.device) as memory, clock("update"):
            report = update()
        # Of ranks, which sharded passes keep in step, one decides.
        repetitions = trainer.ranks.on_main(lambda: int(ENOUGH / clock.seconds["update"]))
        for _ in range(repetitions if repeat else 0):
            with clock("repetition"):
                update()
        with clock("optimizer"):
            trainer.apply(tallies[0])
        seconds = {phase: clock.seconds.get(phase, 0.0) for phase in PHASES}
        peak = memory[0] if memory else None
        return Timing(seconds, report.counts, report.backward_calls, peak, of_laps)

    @torch.no_grad()
    def beside(self) -> None:
        """A forward of one step of a minibatch, timed beside the laps."""
        self._first.velocity([0], self._first.latents[:1])

    def unit(self) -> Unit:
        """Measure f and b on a minibatch's shapes: medians over `REPEATS`, taken in turn."""
        latents = self._first.latents[: self.trainer.recipe.anchor_chunk]
        steps = list(range(len(latents)))

        def seconds(backward: bool) -> float:
            clock = Stopwatch(latents.device)
            with clock("once"), torch.set_grad_enabled(backward):
                v = self._first.velocity(steps, latents)
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
        passes = 2 if self.trainer.recipe.checkpointing else 1
        # A forward that is all overhead can come out dearer than its backward.
        return Unit(median(forwards), max(0.0, median(ratios) - passes))

    def overhead(self, recipe: Recipe) -> float:
        """Seconds of an update in which the network is z * w: what the core itself costs."""
        trainer = self.trainer.under(recipe)
        generator = torch.Generator().manual_seed(0)
        experiences = []
        for experience in self._experiences:
            was = experience.trajectory
            trajectory = sample(
                lambda steps, z: z, was.latents[0], was.sigmas, was.kernels, generator, trainer.version
            )
            experiences.append(replace(experience, trajectory=trajectory))
        weight = torch.ones((), device=trainer.policy.device, requires_grad=True)
        clock = Stopwatch(trainer.policy.device)
        with clock("update"):
            trainer.accumulate(
                experiences, 0, Tally(recipe.images), lambda network: lambda steps, latents: latents * weight
            )
        return clock.seconds["update"]

    def _drop_gradients(self) -> None:
        for parameter in self.trainer.policy.parameters:
            parameter.grad = None


def without_moments(parameters: Sequence[nn.Parameter], recipe: Recipe, updates: int) -> Optimizer:
    """Plain descent, where there is no memory for AdamW's moments."""
    optimizer = torch.optim.SGD(parameters, lr=recipe.learning_rate)
    return optimizer, ConstantLR(optimizer, factor=1.0)
