"""The two training recipes, DanceGRPO and Flow-GRPO-Fast, as one typed set of settings with presets.

A recipe says how trajectories are sampled, which of their steps are trained, by which scheme, and how the
weights move. Both are the same loop (`repro.training.trainer`) with other settings:

* DanceGRPO: noise of constant rate on every step but the last; all those steps are trained.
* Flow-GRPO-Fast: noise inside a window of consecutive steps, drawn anew for every training step, Euler's
  steps outside; the window alone is trained. Four steps by default, so that a group has middles.

Values of the presets are reported or early code where repro's `experiments.paper` has them, and ours where
they are about a size (prompts per step, training steps) or about the bundled checkpoints.

A recipe is data: torch is imported by what makes something of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from repro.core.cost import CostModel, Counts
from repro.core.plan import Velocities, plan
from repro.core.schemes import registry
from repro.core.schemes.groups import equal_step_groups
from repro.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from repro.core.schemes.scheme import Scheme
    from repro.core.sde import Kernel
    from repro.distributed.ranks import Ranks

Algorithm: TypeAlias = Literal["dance_grpo", "flow_grpo_fast"]


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run; see `dance_grpo` and `flow_grpo_fast` for sets that belong together."""

    sampling_steps: int = 21
    """sampling steps; the last one is not trained"""
    shift: float = 3.0
    """shift of the noise schedule"""
    kernel: Literal["dance", "flow", "cps"] = "dance"
    """the sampler's noise: of constant rate, Flow-GRPO's, or coefficients-preserving"""
    eta: float = 0.3
    """scale of the sampler's noise"""
    window: int = 0
    """consecutive steps with noise, the only ones trained; 0 for all but the last"""
    window_range: tuple[int, int] = (0, 10)
    """sampling steps among which the window is drawn, first and one past the last"""
    guidance: float = 1.0
    """true classifier-free guidance, 1 for none"""
    size: int = 0
    """height and width in pixels, 0 for the model's own"""

    scheme: registry.SchemeName = "exact"
    """which backwards are made, with which weights"""
    group_size: int = 4
    """W, steps per group"""
    jagg_frac: float = 0.6
    """share of the groups, from high noise, that scheme routed gives to JAGG"""
    subset_steps: int = 0
    """steps that scheme subset trains, drawn anew for every image"""
    timestep_fraction: float = 1.0
    """share of the groups that is trained, drawn anew for every prompt"""
    velocities: Literal["rollout", "recompute"] = "rollout"
    """where upstream gradients take fresh velocities from: kept from the rollout, or forwarded again"""
    stale: Literal["refuse", "recompute", "correct"] = "refuse"
    """what to do with velocities of older weights, which several updates per rollout bring"""

    prompts: int = 8
    """prompts per training step"""
    images: int = 12
    """images per prompt"""
    updates: int = 1
    """optimizer steps per rollout, each on its share of every prompt's images"""
    micro_batch: int = 0
    """images of a prompt that are forwarded together, 0 for all; the result does not depend on it"""
    anchor_chunk: int = 2
    """anchors stacked in one forward and one backward"""

    learning_rate: float = 1e-5
    """of AdamW"""
    schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    """of the learning rate"""
    warmup: int = 0
    """optimizer steps until the learning rate is reached, from 0 in the first"""
    weight_decay: float = 1e-4
    """of AdamW"""
    max_grad_norm: float = 10.0
    """gradients are scaled down to this norm"""
    clip_range: float = 0.1
    """of the importance ratio"""
    advantage_clip: float = 5.0
    """largest absolute advantage"""
    kl_weight: float = 0.0
    """of the KL divergence from the policy before training"""

    lora_rank: int = 0
    """rank of LoRA adapters on the attention's projections; 0 trains all weights"""
    checkpointing: bool = False
    """recompute activations in the backward"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """of the network's forwards; bfloat16 by autocast, losses stay float32"""
    ema: float = 0.0
    """decay of an exponential moving average of the weights, which is then what is evaluated and saved"""
    fault_limit: int = 5
    """training stops after so many steps in a row that could not be learned from"""

    def check(self) -> None:
        """Refuse values that are out of range or contradict each other, as far as that goes without torch.

        Raises:
            InputError: in one line, what is wrong, what was expected, what to change.
        """
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise InputError(f"{name} is {value}, expected a finite number of at least {least}")
        for name in (*_POSITIVE, *_POSITIVE_OR_INFINITE):
            value = getattr(self, name)
            if not value > 0 or (name in _POSITIVE and math.isinf(value)):
                raise InputError(f"{name} is {value}, expected above 0{' and finite' * (name in _POSITIVE)}")
        if self.jagg_frac > 1:
            raise InputError(f"jagg_frac is {self.jagg_frac}, expected a share of the groups, 0 to 1")
        if not 0 <= self.ema < 1:
            raise InputError(f"ema is {self.ema}, expected a decay in [0, 1), 0 for none")
        if self.warmup and self.schedule == "constant":
            raise InputError("a constant schedule has no warmup: set schedule to constant_with_warmup")
        self._check_steps()
        self._check_updates()

    def _check_steps(self) -> None:
        noisy = self.sampling_steps - 1
        first, last = self.window_range
        if self.window and not (0 <= first and last <= noisy and self.window <= last - first):
            raise InputError(
                f"a window of {self.window} steps does not fit into window_range {first} {last}: expected "
                f"0 <= first, first + window <= last <= {noisy}, the steps that can carry noise"
            )
        try:
            groups = len(equal_step_groups(self.n_trained, self.group_size))
        except ValueError as error:
            raise InputError(str(error)) from None
        fraction = self.timestep_fraction
        if not 0 < fraction <= 1 or self.n_trained_groups < 1:
            raise InputError(
                f"timestep_fraction {fraction} trains {fraction * groups:.2g} of {groups} groups: "
                f"expected at least one, and at most all of them"
            )
        if (self.scheme == "subset") != bool(self.subset_steps) or self.subset_steps > self.n_trained:
            raise InputError(
                f"scheme {self.scheme} with subset_steps {self.subset_steps}: scheme subset takes 1 to "
                f"{self.n_trained} of them, the others 0"
            )
        if self.subset_steps and fraction < 1:
            raise InputError("subset_steps and timestep_fraction both choose the trained steps: drop one")

    def _check_updates(self) -> None:
        if self.images % self.updates:
            raise InputError(
                f"{self.images} images a prompt do not divide among {self.updates} updates: choose a multiple"
            )
        if self.stale == "correct" and self.velocities == "recompute":
            raise InputError("stale correct has nothing to correct: set velocities to rollout")
        if self.updates > 1 and self.velocities == "rollout" and self.stale == "refuse":
            raise InputError(
                f"{self.updates} updates make the rollout's velocities stale: set stale to recompute or "
                "correct, or velocities to recompute"
            )

    def validate(self) -> None:
        """`check`, and that kernel and scheme can be built.

        Raises:
            InputError: in one line, what is wrong, what was expected, what to change.
        """
        self.check()
        try:
            noise(self)
            scheme = self.full_scheme()
            if self.stale == "correct":
                plan(scheme, "correct", self.anchor_chunk)
        except ValueError as error:
            raise InputError(str(error)) from None

    def validate_ranks(self, ranks: Ranks) -> None:
        """Refuse what cannot be split over the ranks: they must make equally many passes.

        Raises:
            InputError: samples that do not divide, or prompts that are trained on unequally many anchors.
        """
        images = len(ranks.parts(self.prompts, self.images, "prompts per training step")[0][1])
        if images % self.updates:
            raise InputError(
                f"{images} images of a prompt on a rank do not divide into {self.updates} updates: take "
                "other numbers of images, updates or ranks"
            )
        if ranks.size > 1 and self.scheme == "routed" and self.timestep_fraction < 1:
            raise InputError(
                "scheme routed with a timestep_fraction below 1 gives some prompts more backwards than "
                "others, which several ranks cannot share: take another scheme, all steps, or one rank"
            )

    @property
    def sigmas(self) -> Tensor:
        """The sampler's noise levels, (sampling_steps + 1,) float64."""
        from repro.core.sde import shifted_sigmas

        return shifted_sigmas(self.sampling_steps, self.shift)

    @property
    def n_trained(self) -> int:
        """Sampling steps with noise: those that could be trained."""
        return self.window or self.sampling_steps - 1

    def noisy_steps(self, generator: torch.Generator) -> range:
        """The sampling steps with noise in one training step."""
        import torch

        if not self.window:
            return range(self.n_trained)
        first, last = self.window_range
        choices = last - first - self.window + 1
        start = first + int(torch.randint(choices, (), generator=generator))
        return range(start, start + self.window)

    def kernels(self, noisy: range) -> list[Kernel]:
        """One transition per sampling step: noise at the steps of `noisy`, Euler's elsewhere."""
        from repro.core.sde import ODE

        return [noise(self) if i in noisy else ODE() for i in range(self.sampling_steps)]

    @property
    def n_trained_groups(self) -> int:
        """Groups of W steps that one prompt is trained on, timestep_fraction of them to the nearest."""
        return round(self.timestep_fraction * self.n_trained / self.group_size)

    def trained_steps(
        self, noisy: range, images: int, generator: torch.Generator
    ) -> tuple[list[int] | Tensor, Scheme]:
        """The sampling steps a prompt's images are trained on, and the scheme over them.

        With subset_steps every image draws its own, as in DanceGRPO: (subset_steps, images). With
        timestep_fraction below 1 the groups are shuffled and the first of them taken (early code), for all
        images of the prompt.
        """
        import torch

        from repro.core.schemes.scheme import exact, restrict

        if self.subset_steps:
            order = torch.rand(images, len(noisy), generator=generator).argsort(dim=1)
            steps = noisy.start + order[:, : self.subset_steps].sort(dim=1).values.T
            scheme = exact(self.sigmas[steps].mean(dim=1))  # times that decrease, as every image's own do
            return steps, replace(scheme, name=f"subset-{self.subset_steps}of{len(noisy)}")
        scheme = self.full_scheme(noisy)
        if self.timestep_fraction == 1:
            return list(noisy), scheme
        groups = equal_step_groups(self.n_trained, self.group_size)
        order = torch.randperm(len(groups), generator=generator)[: self.n_trained_groups]
        chosen = [j for g in sorted(order.tolist()) for j in groups[g]]
        return [noisy[j] for j in chosen], restrict(scheme, chosen)

    def full_scheme(self, noisy: range | None = None) -> Scheme:
        """The scheme over all steps with noise, by default the first ones; a subset is one of its size."""
        noisy = range(self.n_trained) if noisy is None else noisy
        return registry.build(
            self.scheme,
            self.sigmas[noisy.start : noisy.stop],
            self.group_size,
            jagg_frac=self.jagg_frac,
            subset_steps=self.subset_steps,
        )

    @property
    def cost_model(self) -> CostModel:
        """Prices of this recipe's passes."""
        return CostModel(
            backward=1.0 if self.lora_rank else 2.0,
            recompute=1.0 if self.checkpointing else 0.0,
            guidance=self.guidance > 1,
            kl=self.kl_weight > 0,
        )

    @property
    def exact_step_cost(self) -> float:
        """Cost in forwards of one image's training step under the exact scheme, the most any scheme takes."""
        n = self.n_trained
        price = self.cost_model.price
        return price(Counts(self.sampling_steps, 0, 0)) + price(Counts(n, n, n), n)

    def update_cost(self, scheme: Scheme | None = None) -> float:
        """Predicted cost in forwards of an update over all trained steps, the mean over a rollout's updates.

        The first one finds the rollout's velocities fresh, the others find them stale.
        """
        fresh: Velocities = self.velocities
        stale: Velocities = "correct" if fresh == "rollout" and self.stale == "correct" else "recompute"
        scheme, model = scheme or self.full_scheme(), self.cost_model
        total = model.update_cost(scheme, fresh, self.anchor_chunk)
        if self.updates > 1:
            total += (self.updates - 1) * model.update_cost(scheme, stale, self.anchor_chunk)
        return total / self.updates


_LEAST = {
    "sampling_steps": 2,
    "guidance": 1,
    "size": 0,
    "window": 0,
    "group_size": 1,
    "jagg_frac": 0,
    "subset_steps": 0,
    "prompts": 1,
    "images": 2,
    "updates": 1,
    "micro_batch": 0,
    "anchor_chunk": 1,
    "warmup": 0,
    "weight_decay": 0,
    "kl_weight": 0,
    "lora_rank": 0,
    "fault_limit": 1,
}
_POSITIVE = ("shift", "eta", "learning_rate")
_POSITIVE_OR_INFINITE = ("max_grad_norm", "clip_range", "advantage_clip")
"""Bounds, of which infinity is none."""


def noise(recipe: Recipe) -> Kernel:
    """The transition of a recipe's noisy steps."""
    from repro.core.sde import CPS, Dance, Flow

    kernels: dict[str, Any] = {
        "dance": lambda: Dance(recipe.eta),
        "flow": lambda: Flow(recipe.eta, float(recipe.sigmas[1])),
        "cps": lambda: CPS(recipe.eta),
    }
    if recipe.kernel not in kernels:
        raise InputError(f"there is no kernel {recipe.kernel!r}, expected one of {', '.join(kernels)}")
    return kernels[recipe.kernel]()


def equal_cost_subset(recipe: Recipe) -> int:
    """How many exact steps cost what the recipe's scheme does, to the nearest step (ours).

    Counted by the cost model: with the rollout's velocities kept, one step an anchor; with velocities
    forwarded again, as where several updates make them stale, more, as the steps left out spare their
    forwards too.
    """
    from repro.core.schemes.scheme import step_subset

    target = recipe.update_cost()
    times = recipe.sigmas[: recipe.n_trained]
    costs = {k: recipe.update_cost(step_subset(times, range(k))) for k in range(1, len(times) + 1)}
    return min(costs, key=lambda k: (abs(costs[k] - target), k))


def dance_grpo(bundled: bool = False) -> Recipe:
    """DanceGRPO: the early code's settings for FLUX and Qwen-Image, or sizes for the bundled checkpoints.

    But for timestep_fraction: all groups are trained (ours); the early code shuffles them and trains 0.6.
    The two backbones differ in nothing that is known. For the bundled checkpoints eta and learning rate come
    from trials (results/sweep shows what stands beside them), prompts and steps from what two cores can do.
    """
    recipe = Recipe(size=720, checkpointing=True, precision="bfloat16")
    return _bundled(recipe) if bundled else recipe


def flow_grpo_fast(bundled: bool = False) -> Recipe:
    """Flow-GRPO-Fast: noise of Flow-GRPO's form in a window of 4 steps, of the first half (ours).

    Nothing is known of the authors' settings beyond the name; what both recipes share is DanceGRPO's.
    """
    recipe = replace(dance_grpo(), kernel="flow", eta=0.7, window=4, window_range=(0, 10))
    return replace(_bundled(recipe), window_range=(0, 6)) if bundled else recipe


def _bundled(recipe: Recipe) -> Recipe:
    return replace(
        recipe,
        size=0,
        checkpointing=False,
        precision="float32",
        sampling_steps=13,
        eta=0.7,
        prompts=4,
        learning_rate=1.5e-4,
        schedule="constant_with_warmup",
        warmup=4,
    )


PRESETS = {"dance_grpo": dance_grpo, "flow_grpo_fast": flow_grpo_fast}


def preset(algorithm: Algorithm, bundled: bool = False) -> Recipe:
    """A preset by name.

    Raises:
        ValueError: no such algorithm.
    """
    if algorithm not in PRESETS:
        raise InputError(f"there is no algorithm {algorithm!r}, expected one of {', '.join(PRESETS)}")
    return PRESETS[algorithm](bundled)
