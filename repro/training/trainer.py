r"""GRPO training, one loop for every recipe and every scheme.

A training step samples and scores P prompts with B images each, then makes U updates. Update u takes every
U-th image of each prompt, N = P B / U in all, and minimises

    L = 1/N Σ_samples 1/n Σ_j L_j,      n steps trained for that sample's prompt,

by AdamW on the gradient that the recipe's scheme estimates. Micro-batches only cut the sum over samples:
each is scaled by its share of N, so their size does not change the result.

Every random number of a step comes from (seed, step) alone, never from a generator that lives on. So a run
that was killed continues from its last checkpoint to the same weights and metrics as one that was not.

Several ranks share the prompts of a step or, of fewer prompts than ranks, their images. What is random about
a prompt comes from its place among all of them, gradients are averaged over the ranks
(`repro.distributed.fsdp`), and metrics are those of all samples: the same run, on any number of ranks.

A step that cannot be learned from (a scorer that raises or returns no finite numbers, a gradient or loss that
is not finite) makes no update from there on. It is recorded with its fault and with the updates before it,
and training stops after `fault_limit` of them in a row.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from repro.core.gradient import GradientReport, VelocityFn
from repro.core.minibatch import Minibatch
from repro.core.schemes.scheme import Scheme
from repro.distributed.fsdp import full
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.models import bind
from repro.rewards import Scorer
from repro.training.checkpoint import Checkpoints, Rows
from repro.training.experience import Experience, gather
from repro.training.guard import Fault, Guarded
from repro.training.metrics import PHASES, StepRecord, Tally
from repro.training.policy import Policy
from repro.training.recipe import Recipe
from repro.training.stopwatch import Stopwatch


def stream(*key: int | str) -> int:
    """A seed from what it is for: equal keys give equal seeds, different ones unrelated seeds."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:5], "big")


Optimizer: TypeAlias = tuple[torch.optim.Optimizer, LRScheduler]
"""An optimizer and the schedule of its learning rate."""


def make_optimizer(parameters: Sequence[nn.Parameter], recipe: Recipe, updates: int) -> Optimizer:
    """AdamW and its schedule.

    Its state is there from the start, at zero, as its first step would make it: so a checkpoint has the same
    entries after any step, which reading one in place, part by part, relies on.

    Args:
        parameters: sharded or not; their moments are as they are.
        recipe: learning rate, its schedule, weight decay.
        updates: optimizer steps in the whole run.
    """
    from diffusers.optimization import get_scheduler

    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    schedule = get_scheduler(
        recipe.schedule, optimizer, num_warmup_steps=recipe.warmup, num_training_steps=updates
    )
    return optimizer, schedule


class Trainer:
    """A policy, its optimizer and the count of steps.

    `step` is `rollout`, then for each update `accumulate` and `apply`; whoever looks into a step, or times
    one, takes these.

    Args:
        recipe: validated here.
        policy: changed in place; made for the recipe by `make_policy`.
        scorer: the reward.
        prompts: to train on, drawn without replacement, anew in each pass over them.
        seed: with the step's number, of everything random.
        steps: the length of the run, for the schedule of the learning rate.
        ranks: who shares the samples; the policy's.
        optimizer: makes it, see `make_optimizer`.

    Raises:
        ValueError: settings that contradict each other, or that do not divide over the ranks.
    """

    def __init__(
        self,
        recipe: Recipe,
        policy: Policy,
        scorer: Scorer,
        prompts: Sequence[str],
        *,
        seed: int,
        steps: int,
        ranks: Ranks = ALONE,
        optimizer: Callable[[Sequence[nn.Parameter], Recipe, int], Optimizer] = make_optimizer,
    ) -> None:
        recipe.validate()
        recipe.validate_ranks(ranks)
        if not prompts:
            raise InputError("there are no prompts to train on: give at least one")
        self.recipe, self.policy, self.scorer = recipe, policy, scorer
        self.prompts = list(prompts)
        self.seed, self.ranks = seed, ranks
        self.done = self.version = self._faults = 0
        self._optimizer, self._schedule = optimizer(policy.parameters, recipe, steps * recipe.updates)

    def state_dict(self) -> dict[str, Any]:
        """Everything that `step` depends on and changes."""
        return {
            "done": self.done,
            "version": self.version,
            "policy": self.policy.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave; whoever resumes after faults has seen to their cause."""
        self.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self.done, self.version, self._faults = state["done"], state["version"], 0

    def under(self, recipe: Recipe) -> Trainer:
        """The same policy, optimizer and place in the run, the next steps' samples and updates by `recipe`.

        What the policy and the optimizer were made for, such as adapters and learning rate, stays.
        """
        recipe.validate()
        recipe.validate_ranks(self.ranks)
        other = copy(self)
        other.recipe = recipe
        return other

    def step(self) -> StepRecord:
        """One training step, or a skipped one with its fault recorded."""
        clock, tally = Stopwatch(self.policy.device), Tally(self.recipe.images)
        rate = self._schedule.get_last_lr()[0]
        fault = None
        try:
            with clock("rollout"):
                experiences = self.rollout(clock)
            tally.rollout_forwards = self.recipe.sampling_steps * self.recipe.prompts * self.recipe.images
            tally.rewards = torch.cat([e.rewards.float().cpu() for e in experiences])
            tally.advantages = torch.cat([e.advantages.float().cpu() for e in experiences])
            for update in range(self.recipe.updates):
                with clock("update"):
                    self.accumulate(experiences, update, tally)
                with clock("optimizer"):
                    self.apply(tally)
        except Fault as error:
            fault = str(error)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        self.done += 1
        self._faults = self._faults + 1 if fault else 0
        metrics = Tally.merge(self.ranks.gather(tally)).metrics()
        metrics |= {"step": self.done, "learning_rate": rate, "fault": fault}
        return StepRecord(metrics, {phase: clock.seconds.get(phase, 0.0) for phase in PHASES})

    def check_faults(self, fault: str | None) -> None:
        """Stop once too many steps in a row were skipped; `fault` is the last one's.

        Raises:
            ValueError: with the reason.
        """
        if self._faults >= self.recipe.fault_limit:
            raise InputError(
                f"training stopped after {self._faults} steps in a row that could not be learned from, the "
                f"last because {fault}; the weights are those of the last update before it"
            )

    def _generator(self, *purpose: int | str) -> torch.Generator:
        return torch.Generator().manual_seed(stream(self.seed, self.done, *purpose))

    def _batch_prompts(self) -> list[str]:
        count, total = self.recipe.prompts, len(self.prompts)
        chosen = []
        for position in range(self.done * count, (self.done + 1) * count):
            shuffle = torch.Generator().manual_seed(stream(self.seed, "prompts", position // total))
            order = torch.randperm(total, generator=shuffle)
            chosen.append(self.prompts[int(order[position % total])])
        return chosen

    @property
    def noisy(self) -> range:
        """The sampling steps with noise in the step that comes."""
        return self.recipe.noisy_steps(self._generator("window"))

    def rollout(self, clock: Stopwatch | None = None) -> list[Experience]:
        """Sample and score the images of one step, this rank's part: the same ones until `done` is another.

        Raises:
            Fault: rewards that cannot be learned from.
        """
        recipe = self.recipe
        return list(
            gather(
                self.policy,
                Guarded(self.scorer, self.ranks),
                self._batch_prompts(),
                images_per_prompt=recipe.images,
                sigmas=recipe.sigmas,
                kernel=recipe.kernels(self.noisy),
                seed=stream(self.seed, self.done, "rollout"),
                guidance=recipe.guidance,
                advantage_clip=recipe.advantage_clip,
                policy_version=self.version,
                clock=clock,
                ranks=self.ranks,
            )
        )

    def minibatches(
        self, experiences: Sequence[Experience], update: int
    ) -> Iterator[tuple[Minibatch, Scheme]]:
        """What one update goes through: images of one prompt, with the scheme over their trained steps."""
        recipe, noisy = self.recipe, self.noisy
        parts = self.ranks.parts(recipe.prompts, recipe.images)
        share = range(update, len(parts[0][1]), recipe.updates)
        micro_batch = recipe.micro_batch or len(share)
        total = len(share) * len(parts)
        for (i, own), experience in zip(parts, experiences, strict=True):
            drawn, scheme = recipe.trained_steps(noisy, recipe.images, self._generator("steps", update, i))
            for start in range(0, len(share), micro_batch):
                images = share[start : start + micro_batch]
                chosen = slice(images.start, images.stop, images.step)  # a slice makes views, not copies
                conditioning = experience.conditioning.index(chosen)
                steps = drawn
                if isinstance(drawn, torch.Tensor):
                    steps = drawn[:, own.start : own.stop][:, chosen]
                minibatch = Minibatch(
                    bind(self.policy, conditioning, recipe.sigmas, recipe.guidance),
                    experience.trajectory.samples(chosen),
                    steps,
                    experience.advantages[chosen],
                    recipe.clip_range,
                    scale=len(images) / total / scheme.n_steps,
                )
                yield minibatch, scheme

    def accumulate(
        self,
        experiences: Sequence[Experience],
        update: int,
        tally: Tally,
        wrap: Callable[[VelocityFn], VelocityFn] = lambda network: network,
    ) -> list[GradientReport]:
        """Fill .grad with the gradient of one update's loss: sharded, it becomes the mean over the ranks.

        Args:
            experiences: this rank's.
            update: which of the rollout's, from 0.
            tally: of the step, takes what is seen.
            wrap: what goes in the place of every minibatch's network, such as one that watches its calls.

        Returns:
            One report a minibatch.
        """
        recipe, reports = self.recipe, []
        tally.begin_update()
        for minibatch, scheme in self.minibatches(experiences, update):
            minibatch = replace(minibatch, network=wrap(minibatch.network))
            if recipe.kl_weight > 0:
                with self.policy.reference():
                    reference = minibatch.velocities(scheme.needed_steps, recipe.anchor_chunk)
                minibatch = replace(minibatch, kl_weight=recipe.kl_weight, reference_velocities=reference)
                tally.reference_forwards += len(scheme.needed_steps) * len(minibatch)
            report = minibatch.accumulate(
                scheme,
                velocities=recipe.velocities,
                policy_version=self.version,
                stale=recipe.stale,
                anchor_chunk=recipe.anchor_chunk,
                checkpointing=recipe.checkpointing,
            )
            tally.add(report, len(minibatch), len(scheme.needed_steps) / scheme.n_steps)
            reports.append(report)
        tally.losses[-1] = self.ranks.mean(tally.losses[-1])
        return reports

    def apply(self, tally: Tally) -> None:
        """Clip the gradient and take an optimizer step.

        Raises:
            Fault: a gradient or loss that is not finite; no step is taken.
        """
        clipped = torch.nn.utils.clip_grad_norm_(self.policy.parameters, self.recipe.max_grad_norm)
        norm = float(full(clipped))
        tally.grad_norms.append(norm)
        if not (math.isfinite(norm) and math.isfinite(tally.losses[-1])):
            raise Fault(f"the gradient's norm is {norm:g} and the loss {tally.losses[-1]:g}")
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.policy.update_average()
        self.version += 1
        tally.updates += 1


def train(
    trainer: Trainer,
    steps: int,
    *,
    record: Callable[[StepRecord], None],
    visit: Callable[[int], None] = lambda done: None,
    checkpoints: Checkpoints | None = None,
    save: Callable[[int], bool] = lambda done: True,
    rows: Rows | None = None,
) -> None:
    """Train up to `steps` steps in all, from the last checkpoint if there is one.

    What `record` and `visit` put into `rows` is saved with the state, also where too many faults end the run,
    and is there again when it goes on: steps after a state are made, and recorded, as if for the first time.

    Args:
        trainer: new, or at the state to continue from.
        steps: the run's length.
        record: takes every step's record.
        visit: called with the number of steps done, at the start (of a resumed run, too) and after each step.
        checkpoints: where states are kept; none are without it.
        save: whether to keep the state after so many steps; the last one always is.
        rows: filled from the checkpoint, and saved with the next.

    Raises:
        ValueError: too many faults in a row, or a checkpoint that cannot be resumed from.
    """
    rows = {} if rows is None else rows

    def keep() -> None:
        if checkpoints:
            checkpoints.save(trainer.done, trainer.state_dict(), rows)

    found = checkpoints.latest(trainer.state_dict) if checkpoints else None
    if found is not None:
        trainer.load_state_dict(found.state)
        rows.update(found.rows)
    visit(trainer.done)
    while trainer.done < steps:
        result = trainer.step()
        record(result)
        try:
            trainer.check_faults(result.metrics["fault"])
        except InputError:
            keep()
            raise
        visit(trainer.done)
        if save(trainer.done) or trainer.done == steps:
            keep()
