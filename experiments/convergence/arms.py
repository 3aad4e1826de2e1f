"""What training runs differ in: arm, regime, learning rate and seed.

An *arm* is a way to spend the update's compute: a scheme, or fewer steps. A *regime* is how training goes
otherwise, the same for all arms that are compared: comfortably, so that a worse gradient should show, or
off-policy. Both are changes of a recipe; all arms of a regime and a seed share start, prompts and noise.

Which runs the tables in results/ are made of, `experiments.convergence.plans` tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from experiments import paper
from repro.errors import InputError
from repro.training.recipe import Algorithm, Recipe, equal_cost_subset

ArmName: TypeAlias = Literal[
    "exact",
    "jagg",
    "routed",
    "endpoints-own",
    "endpoints-sum",
    "endpoints-half",
    "endpoints-nearest",
    "subset",
    "subset-paper",
    "timestep-fraction",
    "window",
]
RegimeName: TypeAlias = Literal["comfortable", "paper-eta", "sparse", "off-policy", "off-policy-corrected"]


REWARD, SIMILARITY, DIVERSITY = "reward", "similarity", "diversity"
"""Metrics of an evaluation; the evaluation scorers' go by their own names."""

ALGORITHMS: dict[str, str] = {"dance_grpo": "DanceGRPO", "flow_grpo_fast": "Flow-GRPO-Fast"}
"""Labels, for figures and tables."""


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        label: for figures and tables.
        change: the recipe of this arm, from the baseline's.
        claim: whether a claim rests on it, so that it gets the full number of seeds.
        whole: whether it makes sense only where a trajectory has several groups (DanceGRPO).
    """

    label: str
    change: Callable[[Recipe], Recipe]
    claim: bool = False
    whole: bool = False


def _subset(recipe: Recipe) -> Recipe:
    steps = equal_cost_subset(replace(recipe, scheme="jagg"))
    return replace(recipe, scheme="subset", subset_steps=steps)


def _paper_subset(recipe: Recipe) -> Recipe:
    """Sized by what JAGG costs where velocities are forwarded again, as in the paper."""
    steps = equal_cost_subset(replace(recipe, scheme="jagg", velocities="recompute"))
    return replace(recipe, scheme="subset", subset_steps=steps)


def _fraction(recipe: Recipe) -> Recipe:
    """DanceGRPO's own shortcut: 0.6 of the steps, each for itself, drawn anew."""
    return replace(recipe, scheme="subset", subset_steps=max(1, round(0.6 * recipe.n_trained)))


def _window(recipe: Recipe) -> Recipe:
    """Noise and training on one group's worth of steps, anywhere: another objective, far cheaper."""
    steps = recipe.sampling_steps
    return replace(recipe, scheme="exact", window=recipe.group_size, window_range=(0, steps - 1))


ARMS: dict[ArmName, Arm] = {
    "exact": Arm("exact", lambda r: replace(r, scheme="exact"), claim=True),
    "jagg": Arm("JAGG, all groups", lambda r: replace(r, scheme="jagg"), claim=True),
    "routed": Arm("JAGG, routed", lambda r: replace(r, scheme="routed"), whole=True),
    "endpoints-own": Arm("endpoints: own s", lambda r: replace(r, scheme="endpoints-own"), claim=True),
    "endpoints-sum": Arm("endpoints: whole sum", lambda r: replace(r, scheme="endpoints-sum")),
    "endpoints-half": Arm("endpoints: half and half", lambda r: replace(r, scheme="endpoints-half")),
    "endpoints-nearest": Arm("endpoints: nearest", lambda r: replace(r, scheme="endpoints-nearest")),
    "subset": Arm("exact on fewer steps, JAGG's cost", _subset, claim=True),
    "subset-paper": Arm("exact on fewer steps, cost of the paper's JAGG", _paper_subset, claim=True),
    "timestep-fraction": Arm("exact on 0.6 of the steps", _fraction, whole=True),
    "window": Arm("noise in a window of one group", _window, whole=True),
}


def described(regime: RegimeName, factor: float) -> str:
    """A regime in words, with the learning rate's factor unless that is 1."""
    return REGIMES[regime].label + ("" if factor == 1 else f"; learning rate ×{factor:.3g}")


@dataclass(frozen=True)
class Regime:
    """One regime: a change of the baseline's recipe, and how much longer it is trained."""

    label: str
    change: Callable[[Recipe], Recipe]
    steps: int = 1


REGIMES: dict[RegimeName, Regime] = {
    "comfortable": Regime("many images per update", lambda r: r),
    "paper-eta": Regime(
        f"eta {paper.ETA}, else as comfortable",
        lambda r: replace(r, eta=paper.ETA.low),
    ),
    "sparse": Regime(
        "few images per update, twice the learning rate, twice as long",
        lambda r: replace(r, images=min(r.images, 4), learning_rate=2 * r.learning_rate),
        steps=2,
    ),
    "off-policy": Regime(
        "4 updates per rollout, velocities recomputed, clip range 1e-4",
        lambda r: replace(r, updates=4, stale="recompute", clip_range=1e-4),
    ),
    "off-policy-corrected": Regime(
        "4 updates per rollout, velocities corrected, clip range 1e-4",
        lambda r: replace(r, updates=4, stale="correct", clip_range=1e-4),
    ),
}


class Run(NamedTuple):
    """One training run."""

    regime: RegimeName
    arm: ArmName
    lr_factor: float
    seed: int

    @property
    def name(self) -> str:
        """For file names and progress."""
        return f"{self.regime}-{self.arm}-lr{self.lr_factor:g}-seed{self.seed}"

    def recipe(self, base: Recipe) -> Recipe:
        """The run's recipe, from the baseline's.

        Raises:
            ValueError: the arm does not go with the regime or the baseline.
        """
        recipe = ARMS[self.arm].change(REGIMES[self.regime].change(base))
        recipe = replace(recipe, learning_rate=recipe.learning_rate * self.lr_factor)
        try:
            recipe.validate()
        except ValueError as error:
            raise InputError(f"{self.regime} {self.arm}: {error}, or --arms that go with it") from None
        return recipe

    def steps(self, base: int) -> int:
        """The run's training steps, where the comfortable regime makes `base`."""
        return base * REGIMES[self.regime].steps


def arms_of(algorithm: Algorithm) -> tuple[ArmName, ...]:
    """The arms that an algorithm has; Flow-GRPO-Fast trains a single group."""
    return tuple(name for name, arm in ARMS.items() if algorithm == "dance_grpo" or not arm.whole)


def plan_runs(
    regimes: tuple[RegimeName, ...],
    arms: tuple[ArmName, ...],
    lr_factors: tuple[float, ...],
    first_seed: int,
    seeds: int,
    fewer_seeds: int,
) -> list[Run]:
    """The runs in the order they are trained: seed by seed, so that an early stop leaves complete pairs."""
    count = {arm: seeds if ARMS[arm].claim else min(seeds, fewer_seeds) for arm in arms}
    return [
        Run(regime, arm, factor, first_seed + k)
        for k in range(seeds)
        for regime in dict.fromkeys(regimes)
        for factor in dict.fromkeys(lr_factors)
        for arm in dict.fromkeys(arms)
        if k < count[arm]
    ]
