"""What a recipe may not say: values out of range, and settings that contradict each other.

Every refusal is a ValueError of one line: what is wrong, what was expected, what to change.
"""

from __future__ import annotations

import math

from repro.core.plan import plan
from repro.core.schemes.groups import equal_step_groups
from repro.distributed.ranks import Ranks
from repro.errors import InputError
from repro.training.recipe import Recipe, noise

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


def validate(recipe: Recipe) -> None:
    """Refuse a recipe that cannot be run as it stands.

    Raises:
        ValueError: see the module.
    """
    for name, least in _LEAST.items():
        value = getattr(recipe, name)
        if not (math.isfinite(value) and value >= least):
            raise InputError(f"{name} is {value}, expected a finite number of at least {least}")
    for name in (*_POSITIVE, *_POSITIVE_OR_INFINITE):
        value = getattr(recipe, name)
        if not value > 0 or (name in _POSITIVE and math.isinf(value)):
            raise InputError(f"{name} is {value}, expected above 0{' and finite' * (name in _POSITIVE)}")
    if recipe.jagg_frac > 1:
        raise InputError(f"jagg_frac is {recipe.jagg_frac}, expected a share of the groups, 0 to 1")
    if not 0 <= recipe.ema < 1:
        raise InputError(f"ema is {recipe.ema}, expected a decay in [0, 1), 0 for none")
    if recipe.warmup and recipe.schedule == "constant":
        raise InputError("a constant schedule has no warmup: set schedule to constant_with_warmup")
    _validate_steps(recipe)
    _validate_updates(recipe)


def validate_ranks(recipe: Recipe, ranks: Ranks) -> None:
    """Refuse a recipe whose training step cannot be split over the ranks: they must make equally many passes.

    Raises:
        ValueError: samples that do not divide, or prompts that are trained on unequally many anchors.
    """
    images = len(ranks.parts(recipe.prompts, recipe.images, "prompts per training step")[0][1])
    if images % recipe.updates:
        raise InputError(
            f"{images} images of a prompt on a rank do not divide into {recipe.updates} updates: take other "
            "numbers of images, updates or ranks"
        )
    if ranks.size > 1 and recipe.scheme == "routed" and recipe.timestep_fraction < 1:
        raise InputError(
            "scheme routed with a timestep_fraction below 1 gives some prompts more backwards than others, "
            "which several ranks cannot share: take another scheme, all steps, or one rank"
        )


def _validate_steps(recipe: Recipe) -> None:
    noise(recipe)
    noisy = recipe.sampling_steps - 1
    first, last = recipe.window_range
    if recipe.window and not (0 <= first and last <= noisy and recipe.window <= last - first):
        raise InputError(
            f"a window of {recipe.window} steps does not fit into window_range {first} {last}: expected "
            f"0 <= first, first + window <= last <= {noisy}, the steps that can carry noise"
        )
    groups = len(equal_step_groups(recipe.n_trained, recipe.group_size))
    fraction = recipe.timestep_fraction
    if not 0 < fraction <= 1 or recipe.n_trained_groups < 1:
        raise InputError(
            f"timestep_fraction {fraction} trains {fraction * groups:.2g} of {groups} groups: "
            f"expected at least one, and at most all of them"
        )
    if (recipe.scheme == "subset") != bool(recipe.subset_steps) or recipe.subset_steps > recipe.n_trained:
        raise InputError(
            f"scheme {recipe.scheme} with subset_steps {recipe.subset_steps}: scheme subset takes 1 to "
            f"{recipe.n_trained} of them, the others 0"
        )
    if recipe.subset_steps and fraction < 1:
        raise InputError("subset_steps and timestep_fraction both choose the trained steps: drop one")
    recipe.full_scheme()


def _validate_updates(recipe: Recipe) -> None:
    if recipe.images % recipe.updates:
        raise InputError(
            f"{recipe.images} images a prompt do not divide among {recipe.updates} updates: choose a multiple"
        )
    if recipe.stale == "correct" and recipe.velocities == "recompute":
        raise InputError("stale correct has nothing to correct: set velocities to rollout")
    if recipe.stale == "correct":
        plan(recipe.full_scheme(), "correct", recipe.anchor_chunk)
    if recipe.updates > 1 and recipe.velocities == "rollout" and recipe.stale == "refuse":
        raise InputError(
            f"{recipe.updates} updates make the rollout's velocities stale: set stale to recompute or "
            "correct, or velocities to recompute"
        )
