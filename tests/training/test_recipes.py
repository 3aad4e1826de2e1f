"""Recipes: presets against the paper's numbers, what is drawn, what is refused; schemes by name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch

from experiments import paper
from repro.core.schemes import registry
from repro.core.schemes.jagg import jagg
from repro.core.schemes.scheme import exact, restrict
from repro.core.sde import ODE, Dance, Flow
from repro.training import recipe as recipes
from repro.training.recipe import Recipe, dance_grpo, equal_cost_subset, flow_grpo_fast, preset


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("algorithm", get_args(recipes.Algorithm))
@pytest.mark.parametrize("bundled", [False, True])
def test_presets_are_valid_with_every_scheme(algorithm, bundled):
    recipe = preset(algorithm, bundled)
    recipe.validate()
    for name in get_args(registry.SchemeName):
        replace(recipe, scheme=name, subset_steps=2 if name == "subset" else 0).validate()


def test_dance_grpo_has_the_papers_settings():
    recipe = dance_grpo()
    for value, quantity in (
        (recipe.sampling_steps, paper.SAMPLING_STEPS),
        (recipe.n_trained, paper.TRAINED_STEPS),
        (recipe.group_size, paper.GROUP_SIZE),
        (recipe.jagg_frac, paper.JAGG_FRAC),
        (recipe.shift, paper.SHIFT),
        (recipe.eta, paper.ETA),
        (recipe.images, paper.IMAGES_PER_PROMPT),
        (recipe.clip_range, paper.CLIP_RANGE),
        (recipe.advantage_clip, paper.ADVANTAGE_CLIP),
        (recipe.learning_rate, paper.LEARNING_RATE),
        (recipe.weight_decay, paper.WEIGHT_DECAY),
        (recipe.max_grad_norm, paper.MAX_GRAD_NORM),
        (recipe.size, paper.RESOLUTION),
    ):
        assert value == quantity.low, quantity.what


def test_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match="no algorithm 'ppo', expected one of dance_grpo, flow_grpo_fast"):
        preset("ppo")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": 1}, "images is 1, expected a finite number of at least 2"),
        ({"eta": 0.0}, "eta is 0.0, expected above 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf, expected above 0 and finite"),
        ({"kernel": "cps", "eta": 1.5}, "CPS's eta is 1.5"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"group_size": 3}, "20 steps do not divide into groups of W=3"),
        ({"jagg_frac": 1.2}, "jagg_frac is 1.2"),
        ({"window": 4, "window_range": (0, 3)}, "a window of 4 steps does not fit"),
        ({"window": 4, "window_range": (17, 21)}, "a window of 4 steps does not fit"),
        ({"timestep_fraction": 0.05}, "timestep_fraction 0.05 trains 0.25 of 5 groups"),
        ({"timestep_fraction": 1.1}, "timestep_fraction 1.1"),
        ({"scheme": "subset"}, "scheme subset with subset_steps 0"),
        ({"subset_steps": 3}, "scheme exact with subset_steps 3"),
        ({"scheme": "subset", "subset_steps": 21}, "takes 1 to 20"),
        ({"scheme": "subset", "subset_steps": 3, "timestep_fraction": 0.6}, "both choose the trained steps"),
        ({"scheme": "magic"}, "there is no scheme 'magic', expected one of exact, jagg"),
        ({"updates": 5}, "12 images a prompt do not divide among 5 updates"),
        ({"updates": 2}, "2 updates make the rollout's velocities stale"),
        ({"stale": "correct", "velocities": "recompute"}, "nothing to correct"),
        ({"stale": "correct", "scheme": "endpoints-sum"}, "cannot correct velocities"),
        ({"ema": 1.0}, "ema is 1.0"),
        ({"warmup": 5}, "a constant schedule has no warmup"),
    ],
)
def test_contradictions_are_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        replace(dance_grpo(), **changes).validate()
    assert "\n" not in str(caught.value)


def test_dance_grpo_has_noise_on_all_steps_but_the_last():
    recipe = dance_grpo(bundled=True)
    noisy = recipe.noisy_steps(generator())
    assert noisy == range(12)
    assert recipe.kernels(noisy) == [Dance(0.7)] * 12 + [ODE()]


def test_flow_grpo_fast_draws_its_window_within_the_range():
    recipe = replace(flow_grpo_fast(bundled=True), window_range=(1, 7))
    windows = {recipe.noisy_steps(generator(seed)) for seed in range(40)}
    assert windows == {range(1, 5), range(2, 6), range(3, 7)}
    kernels = recipe.kernels(range(2, 6))
    noise = Flow(0.7, float(recipe.sigmas[1]))
    assert kernels == [ODE()] * 2 + [noise] * 4 + [ODE()] * 7
    steps, scheme = recipe.trained_steps(range(2, 6), 12, generator())
    assert steps == [2, 3, 4, 5]
    assert torch.equal(scheme.times, recipe.sigmas[2:6])


def test_timestep_fraction_trains_whole_groups():
    recipe = replace(dance_grpo(), scheme="routed", timestep_fraction=0.6)
    full = recipe.full_scheme()
    seen = set()
    for seed in range(30):
        steps, scheme = recipe.trained_steps(range(20), 12, generator(seed))
        groups = sorted({j // 4 for j in steps})
        seen.add(tuple(groups))
        assert steps == [j for g in groups for j in range(4 * g, 4 * g + 4)]
        # A group keeps its rows of the whole scheme: routing goes by noise level, not by what is trained.
        assert scheme.weights.sum() == full.weights[steps].sum()
        assert [steps[a] for a in scheme.anchors] == [a for a in full.anchors if a in steps]
    assert all(len(groups) == 3 for groups in seen) and len(seen) == 10


def test_restrict_refuses_to_cut_through_a_group():
    scheme = jagg(torch.linspace(1, 0.1, 8), 4)
    with pytest.raises(ValueError, match="choose whole groups"):
        restrict(scheme, [0, 1, 2])


def test_every_image_draws_a_subset_of_its_own_uniformly():
    recipe = replace(dance_grpo(), scheme="subset", subset_steps=5)
    steps, scheme = recipe.trained_steps(range(1, 21), 4000, generator())
    assert steps.shape == (5, 4000) and (scheme.n_steps, scheme.n_anchors) == (5, 5)
    assert (steps.diff(dim=0) > 0).all() and steps.min() == 1 and steps.max() == 20
    assert torch.equal(scheme.weights, exact(scheme.times).weights)
    counts = torch.bincount(steps.flatten(), minlength=21)[1:] / 4000
    assert (counts - 1 / 4).abs().max() < 5 * math.sqrt(3 / 16 / 4000)
    pairs = (steps[0] == 1) & (steps[1] == 2)  # without replacement: 5/20 of 4/19
    assert abs(float(pairs.double().mean()) - 1 / 19) < 5 * math.sqrt(1 / 19 / 4000)


@pytest.mark.parametrize(("velocities", "steps"), [("rollout", 10), ("recompute", 13)])
def test_equal_cost_subset_follows_the_cost_model(velocities, steps):
    recipe = replace(dance_grpo(), scheme="jagg", velocities=velocities, checkpointing=False)
    assert equal_cost_subset(recipe) == steps
    subset = replace(recipe, scheme="subset", subset_steps=steps)
    assert abs(subset.update_cost() / recipe.update_cost() - 1) < 0.05


@pytest.mark.parametrize(("stale", "subset"), [("recompute", 7), ("correct", 6)])
def test_stale_updates_are_priced_too(stale, subset):
    recipe = replace(dance_grpo(bundled=True), scheme="jagg", updates=4, stale=stale)
    # 12 steps, 6 anchors: a fresh update 6 (1 + 2); a stale one forwards the 6 middles too, or corrects them.
    assert recipe.update_cost() == (18 + 3 * {"recompute": 24, "correct": 18}[stale]) / 4
    assert equal_cost_subset(recipe) == subset  # exact steps cost 3 each, fresh or stale
    assert (
        abs(replace(recipe, scheme="subset", subset_steps=subset).update_cost() - recipe.update_cost()) <= 1.5
    )


def test_prices_follow_the_recipe():
    model = Recipe(lora_rank=8, checkpointing=True, guidance=4.0, kl_weight=0.1).cost_model
    assert (model.backward, model.recompute, model.guidance, model.kl) == (1.0, 1.0, True, True)
