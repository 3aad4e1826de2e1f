"""Which training runs the tables in results/ are made of: per model and recipe, as data.

``repro run convergence --model M [--algorithm A]`` without further options makes the committed table of
`PLANS`; ``--plan sweep/...`` makes the ones of noise level, learning rate, start and length that led to it.
Options that choose runs (arms, regimes, rates, seeds) replace the plan by one `Runs`, its first with these
changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from experiments.convergence.arms import ArmName, RegimeName, Run, arms_of, plan_runs
from repro.errors import InputError
from repro.training.recipe import Algorithm

PlanName: TypeAlias = Literal[
    "table",
    "sweep",
    "sweep/own-start",
    "sweep/noise-0.4",
    "sweep/noise-0.5",
    "sweep/longer",
    "sweep/five-steps",
]
"""The committed table, or a folder of results/."""


@dataclass(frozen=True)
class Runs:
    """Training runs that belong together: all arms in all regimes at all learning rates.

    Attributes:
        arms: all that the algorithm has if there are none.
        lr_factors: multiples of the recipe's learning rate.
        seeds: of the arms on which a claim rests.
        fewer_seeds: of the others, at most.
    """

    arms: tuple[ArmName, ...] = ()
    regimes: tuple[RegimeName, ...] = ("comfortable",)
    lr_factors: tuple[float, ...] = (1.0,)
    seeds: int = 6
    fewer_seeds: int = 3

    def listed(self, algorithm: Algorithm, first_seed: int) -> list[Run]:
        """The runs one by one, seed by seed."""
        arms = self.arms or arms_of(algorithm)
        return plan_runs(self.regimes, arms, self.lr_factors, first_seed, self.seeds, self.fewer_seeds)


@dataclass(frozen=True)
class Plan:
    """A table's runs.

    Attributes:
        runs: in the order in which they are trained; what two of them share is trained once.
        settings: of the configuration, in place of its defaults.
        recipe: settings of the recipe, in place of the preset's.
    """

    runs: tuple[Runs, ...] = (Runs(),)
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)


FOUR: tuple[ArmName, ...] = ("exact", "jagg", "endpoints-own", "subset")
"""What a claim rests on, without the second control."""
OTHER_READINGS: tuple[ArmName, ...] = ("endpoints-sum", "endpoints-half", "endpoints-nearest")
EXACT: tuple[ArmName, ...] = ("exact",)
LONG = {"steps": 48, "evaluate_every": 6}
FEW_STEPS = {"sampling_steps": 5, "prompts": 12}

PLANS: dict[tuple[PlanName, str, Algorithm], Plan] = {
    ("table", "tiny-flux", "dance_grpo"): Plan(
        (
            Runs(),
            Runs(OTHER_READINGS, fewer_seeds=6),
            Runs(lr_factors=(0.5, 2.0), seeds=3),
            Runs(FOUR, ("paper-eta",), seeds=3),
            Runs(EXACT, ("sparse",), (0.25, 0.5, 1.0), seeds=1),
            Runs(FOUR, ("sparse",), (0.25,), seeds=3),
            Runs(("exact", "jagg"), ("off-policy", "off-policy-corrected"), seeds=1),
        )
    ),
    ("table", "tiny-flux", "flow_grpo_fast"): Plan((Runs(FOUR), Runs(OTHER_READINGS))),
    ("table", "tiny-qwen-image", "dance_grpo"): Plan(
        (Runs(FOUR, lr_factors=(0.333,)), Runs(EXACT, seeds=1)), LONG, FEW_STEPS
    ),
    ("table", "tiny-qwen-image", "flow_grpo_fast"): Plan((Runs(FOUR, lr_factors=(0.333,), seeds=3),), LONG),
    ("sweep", "tiny-flux", "dance_grpo"): Plan(
        (
            Runs(EXACT, lr_factors=(0.333, 1.0, 3.0), seeds=1),
            Runs(EXACT, ("paper-eta",), seeds=1),
            Runs(EXACT, ("sparse",), (0.25, 0.5, 1.0), seeds=1),
        )
    ),
    ("sweep", "tiny-qwen-image", "dance_grpo"): Plan(
        (Runs(EXACT, lr_factors=(0.1, 0.333), seeds=1), Runs(FOUR, seeds=2))
    ),
    ("sweep/own-start", "tiny-flux", "dance_grpo"): Plan((Runs(EXACT, seeds=1),), {"start_noise": 0.0}),
    ("sweep/noise-0.4", "tiny-qwen-image", "dance_grpo"): Plan(
        (Runs(EXACT, lr_factors=(1.0, 2.0), seeds=1),), {"start_noise": 0.4}
    ),
    ("sweep/noise-0.5", "tiny-qwen-image", "dance_grpo"): Plan(
        (
            Runs(EXACT, lr_factors=(1.0, 3.0, 6.0), seeds=1),
            Runs(EXACT, seeds=3),
            Runs(EXACT, ("paper-eta",), seeds=1),
        ),
        {"start_noise": 0.5},
    ),
    ("sweep/longer", "tiny-qwen-image", "dance_grpo"): Plan(
        (Runs(FOUR, lr_factors=(0.333,), seeds=3),), LONG
    ),
    ("sweep/five-steps", "tiny-qwen-image", "dance_grpo"): Plan((Runs(EXACT, seeds=3),), {}, FEW_STEPS),
}


def plan_of(name: PlanName, model: str, algorithm: Algorithm) -> Plan:
    """The plan of a model's table; a model of your own has all arms, in the comfortable regime.

    Raises:
        InputError: a sweep that was not made with this model and algorithm.
    """
    if name == "table":
        return PLANS.get((name, model, algorithm), Plan())
    if (name, model, algorithm) not in PLANS:
        there = [f"--model {m} --algorithm {a}" for n, m, a in PLANS if n == name]
        known = f"pass {' or '.join(there)}" if there else f"expected one of {', '.join(get_args(PlanName))}"
        raise InputError(f"there is no plan {name} of {model} with {algorithm}: {known}")
    return PLANS[name, model, algorithm]
