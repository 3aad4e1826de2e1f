"""The convergence experiment on a random FLUX: the run, resuming, refusals, evaluation, costs."""

from __future__ import annotations

import math
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CAPTIONS, build_clip, build_flux, build_hpsv2

from experiments.common.inputs import load_model
from experiments.convergence import evaluation, figure
from experiments.convergence import measure as convergence
from experiments.convergence.analysis import spent
from repro.results import HIDDEN, read
from repro.rewards.base import UserScorer
from repro.training import logs
from repro.training.policy import Policy
from repro.training.recipe import Recipe, dance_grpo


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("inputs")
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(CAPTIONS))
    (folder / "hpsv2").mkdir()
    return {
        "model": str(build_flux(folder / "random-flux")),
        "reward": f"hpsv2:{build_hpsv2(folder / 'hpsv2')}",
        "other": f"clipscore:{build_clip(folder / 'clip')}",
        "prompts": str(prompts),
    }


def preset(**changes) -> Recipe:
    return replace(dance_grpo(bundled=True), **changes)


def config(inputs: dict[str, str], out: Path, **changes) -> convergence.Config:
    settings = {
        "model": inputs["model"],
        "reward": inputs["reward"],
        "eval_rewards": (inputs["other"],),
        "prompts_file": Path(inputs["prompts"]),
        "eval_prompts_file": Path(inputs["prompts"]),
        "arms": ("exact", "jagg"),
        "seeds": 2,
        "steps": 2,
        "evaluate_every": 1,
        "checkpoint_every": 1,
        "train_prompts": 4,
        "eval_prompts": 2,
        "eval_images": 2,
        "recipe": preset(sampling_steps=5, prompts=1, images=2),
        "out": out,
    }
    return convergence.Config(**{**settings, **changes})


def test_a_run_fills_its_tables_resumes_and_draws(inputs, tmp_path, monkeypatch):
    whole = convergence.run(config(inputs, tmp_path / "whole"))
    table = read(whole)
    assert set(table.metric) == {"reward", "clipscore:clip", "diversity"}
    assert len(table) == 2 * 2 * 3 * 3  # arms, seeds, evaluations, metrics
    assert table.value.notna().all() and (table[table.metric == "diversity"].value > 0).all()
    start = table[(table.step == 0) & (table.metric == "reward")].value
    assert start.nunique() == 1  # the same start, prompts and noise for every cell
    trained = read(whole.with_name("convergence-training.csv"))
    assert len(trained) == 2 * 2 * 2 and trained.fault.isna().all()
    jagg, exact = (trained[trained.arm == arm].set_index(["seed", "step"]) for arm in ("jagg", "exact"))
    assert (jagg.backwards * 2 == exact.backwards).all()
    assert (jagg.reward_mean == exact.reward_mean).xs(1, level="step").all()
    assert figure.plot(whole).stat().st_size > 4_000
    assert whole.with_name("convergence-samples.png").exists()

    # Stopped in the second cell, and resumed.
    calls = 0
    evaluate = evaluation.Evaluator.__call__

    def stop_at_the_fifth(self, *arguments):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return evaluate(self, *arguments)

    monkeypatch.setattr(evaluation.Evaluator, "__call__", stop_at_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        convergence.run(config(inputs, tmp_path / "resumed", seeds=1))
    resumed = convergence.run(config(inputs, tmp_path / "resumed"))
    assert calls == 5 + 3 + 6  # the interrupted run, which had no state yet, then the other seed's
    for name in ("convergence.csv", "convergence-training.csv"):
        assert resumed.with_name(name).read_bytes() == whole.with_name(name).read_bytes(), name
    assert not list((resumed.parent / HIDDEN).glob("*/state-*"))


def train_into(inputs: dict[str, str], out: Path) -> None:
    convergence.run(config(inputs, out))


def test_two_processes_one_of_them_killed_share_a_folder_and_leave_the_bytes_of_one(inputs, tmp_path):
    """Either trains what the other has not in hand, the second also what the first had when it was killed."""
    whole = convergence.run(config(inputs, tmp_path / "whole"))
    context = multiprocessing.get_context("spawn")
    first, second = (context.Process(target=train_into, args=(inputs, tmp_path / "shared")) for _ in range(2))
    first.start()
    states = tmp_path / "shared" / whole.parent.name / HIDDEN
    while not list(states.glob("*/state-*.json")):
        assert first.is_alive()
        time.sleep(0.01)
    second.start()
    first.kill()
    second.join()
    assert second.exitcode == 0 and not list(states.glob("*/state-*"))
    for name in ("convergence.csv", "convergence-training.csv"):
        assert (states.parent / name).read_bytes() == whole.with_name(name).read_bytes(), name


def test_another_recipe_is_refused_and_more_cells_are_not(inputs, tmp_path):
    one = config(inputs, tmp_path, seeds=1, arms=("exact",), steps=1)
    convergence.run(one)
    with pytest.raises(ValueError, match="eta=0.7, not the 0.3 asked for now"):
        convergence.run(replace(one, recipe=replace(one.recipe, eta=0.3)))
    convergence.run(replace(one, arms=("jagg",)))
    with pytest.raises(ValueError, match="exact-lr1-seed0 was trained without --save, its policy is gone"):
        convergence.run(replace(one, save=True))
    Path(inputs["prompts"]).write_text("\n".join(reversed(CAPTIONS)))
    try:
        with pytest.raises(ValueError, match="prompts_sha256="):
            convergence.run(one)
    finally:
        Path(inputs["prompts"]).write_text("\n".join(CAPTIONS))


@pytest.mark.parametrize("noise", [-0.1, float("nan"), float("inf")])
def test_noise_that_is_none_is_refused(inputs, tmp_path, noise):
    with pytest.raises(ValueError, match="start_noise is .*, expected 0 or more"):
        convergence.run(config(inputs, tmp_path, start_noise=noise))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "flow_grpo_fast", "arms": ("window",)}, "flow_grpo_fast has no arm window"),
        ({"steps": 0}, "steps is 0, expected at least 1"),
        ({"train_prompts": -3}, "train_prompts is -3, expected 0, for all, or more"),
        ({"recipe": preset(timestep_fraction=0.5), "arms": ("subset",)}, "drop one, or --arms that go"),
        ({"eval_images": 1}, "evaluate 2 or more"),
        ({"recipe": preset(scheme="jagg")}, "choose some with --arms"),
        ({"recipe": preset(group_size=5)}, "comfortable: 12 steps do not divide"),
    ],
)
def test_bad_requests_are_refused_before_training(inputs, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        convergence.run(config(inputs, tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_live_curves_need_their_library(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    logs.check("none")
    with pytest.raises(ValueError, match="log wandb needs a library that is not here: pip install wandb"):
        logs.check("wandb")


def test_evaluation_is_deterministic_and_knows_the_truth(inputs):
    from repro.models import load
    from repro.rewards import load as load_reward

    clip = load_reward(inputs["other"])
    policy = Policy(load(inputs["model"]))
    recipe = replace(dance_grpo(bundled=True), sampling_steps=3)
    unknown = evaluation.Prompts(list(CAPTIONS[:2]), None)
    first = evaluation.Evaluator(unknown, 2, clip, [clip])(policy, recipe)
    # Its own first images as the truth: half of the pairs are then identical.
    known = evaluation.Prompts(list(CAPTIONS[:2]), first.images)
    values = evaluation.Evaluator(known, 2, clip, [clip])(policy, recipe).values
    assert values["reward"] == first.values["reward"] and values["diversity"] == first.values["diversity"]
    assert values["similarity"] == pytest.approx(1 - values["diversity"] / 2, abs=1e-5)
    # The scorer that is trained on measures nothing else.
    assert list(evaluation.Evaluator(known, 2, clip, [])(policy, recipe).values) == ["reward"]
    broken = UserScorer("broken", lambda images, prompts: [math.nan] * len(images))
    with pytest.raises(ValueError, match="evaluation stopped, .*scorer broken returned") as caught:
        evaluation.Evaluator(known, 2, clip, [broken])(policy, recipe)
    assert "\n" not in str(caught.value)


def test_a_card_does_not_make_a_model_small(inputs, tmp_path):
    assert load_model(inputs["model"]).small
    large = tmp_path / "large" / "transformer"
    large.mkdir(parents=True)
    (large.parent / "repro_card.json").write_text("{}")
    with open(large / "model.safetensors", "wb") as file:
        file.truncate(2**30)
    assert not load_model(str(large.parent)).small


def test_costs_are_the_cost_models(inputs, tmp_path):
    csv = convergence.run(config(inputs, tmp_path, seeds=1, steps=1))
    cost = spent(csv).set_index("arm").cost
    # 2 images: 5 sampling steps; 4 trained steps with kept velocities, forward and backward 3.
    assert cost["exact"] == 2 * (5 + 4 * 3) and cost["jagg"] == 2 * (5 + 2 * 3)


def test_samples_strip_holds_the_first_images(tmp_path):
    from PIL import Image

    images = torch.stack([torch.full((3, 4, 4), value) for value in (0.0, 1.0, 0.5)])
    convergence.save_images(images, tmp_path / "s" / "strip.png", count=2)
    pixels = np.asarray(Image.open(tmp_path / "s" / "strip.png"))
    assert pixels.shape == (4, 8, 3) and pixels[0, 0, 0] == 0 and pixels[0, 7, 0] == 255
