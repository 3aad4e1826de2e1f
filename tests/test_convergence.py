"""The convergence experiment on a random FLUX: cells, resuming, evaluation, statistics, figures."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import CAPTIONS, build_clip, build_flux, build_hpsv2
from scipy import stats
from training_tables import fake

from experiments import convergence, evaluation, training
from experiments.cells import ARMS, SETTINGS, Cell, arms_of, plan_cells
from experiments.convergence_data import at_factors, best_factors, complete, differences, runs, spent
from experiments.convergence_report import hacking_sentence, learning_sentence
from experiments.inputs import load_model
from experiments.paired import compare
from experiments.resuming import make_way, require_rows
from experiments.start import disturb
from repro import logs
from repro.overrides import Overrides, override
from repro.policy import Policy
from repro.ranks import ALONE
from repro.recipes import Recipe, dance_grpo, preset
from repro.records import METRICS, PHASES
from repro.results import read
from repro.rewards.base import UserScorer
from repro.shared_table import SharedTable


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
        "recipe": Overrides(sampling_steps=5, prompts=1, images=2),
        "out": out,
    }
    return convergence.Config(**{**settings, **changes})


# The start


def test_noise_on_the_start_has_the_size_that_is_asked_for_and_is_the_same_every_time():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.LayerNorm(200))
    before = copy.deepcopy(network)
    again = copy.deepcopy(network)
    disturb(network, 0.5)
    disturb(again, 0.5)
    added = network[0].weight - before[0].weight
    assert float((added.std() / before[0].weight.std()).detach()) == pytest.approx(0.5, rel=0.02)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    for one, other in ((network[0].bias, before[0].bias), (network[1].weight, before[1].weight)):
        assert torch.equal(one, other), "vectors stay"
    untouched = copy.deepcopy(before)
    disturb(before, 0.0)
    assert torch.equal(before[0].weight, untouched[0].weight)


@pytest.mark.parametrize("noise", [-0.1, float("nan"), float("inf")])
def test_noise_that_is_none_is_refused(inputs, tmp_path, noise):
    with pytest.raises(ValueError, match="start_noise is .*, expected 0 or more"):
        convergence.train_cells(config(inputs, tmp_path, start_noise=noise))
    assert not list(tmp_path.iterdir())


# Cells


@pytest.mark.parametrize("algorithm", ["dance_grpo", "flow_grpo_fast"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_arm_is_valid_in_every_setting_or_says_why_not(algorithm, setting):
    base = preset(algorithm, bundled=True)
    for arm in arms_of(algorithm):
        if (setting, arm) == ("off-policy-corrected", "endpoints-sum"):
            with pytest.raises(ValueError, match="endpoints-sum: scheme .* cannot correct"):
                Cell(setting, arm, 1.0, 0).recipe(base)
        else:
            Cell(setting, arm, 1.0, 0).recipe(base)


def test_arms_differ_in_the_update_alone_but_for_the_window():
    base = dance_grpo(bundled=True)
    update = {"scheme", "subset_steps", "jagg_frac"}
    for name, arm in ARMS.items():
        recipe = arm.change(base)
        changed = {f for f in vars(base) if getattr(recipe, f) != getattr(base, f)}
        assert changed <= (update if name != "window" else {"window", "window_range"}), name
    assert arms_of("flow_grpo_fast") == tuple(a for a, arm in ARMS.items() if not arm.whole)


def test_the_subset_costs_what_jagg_does():
    base = dance_grpo(bundled=True)
    jagg, subset = (ARMS[name].change(base).update_cost() for name in ("jagg", "subset"))
    assert subset == jagg < ARMS["exact"].change(base).update_cost()
    assert ARMS["timestep-fraction"].change(base).subset_steps == 7  # 0.6 of 12 steps


def test_cells_come_seed_by_seed_and_claims_get_more_seeds():
    planned = plan_cells(("comfortable",), ("exact", "routed"), (1.0, 2.0), 5, 3, 1)
    assert [(c.arm, c.lr_factor, c.seed) for c in planned] == [
        ("exact", 1.0, 5),
        ("routed", 1.0, 5),
        ("exact", 2.0, 5),
        ("routed", 2.0, 5),
        ("exact", 1.0, 6),
        ("exact", 2.0, 6),
        ("exact", 1.0, 7),
        ("exact", 2.0, 7),
    ]


def test_learning_rate_factors_multiply_the_settings():
    base = dance_grpo(bundled=True)
    comfortable, half, sparse = (
        Cell(setting, "exact", factor, 0).recipe(base).learning_rate
        for setting, factor in (("comfortable", 1.0), ("comfortable", 0.5), ("sparse", 0.5))
    )
    assert comfortable == base.learning_rate and half == base.learning_rate / 2
    assert sparse == pytest.approx(0.5 * 2 * base.learning_rate), "its steps are twice as large"


def test_overrides_replace_only_what_is_given():
    recipe = override(dance_grpo(), Overrides(eta=0.5, window=0, checkpointing=False))
    assert type(recipe) is Recipe
    assert recipe == replace(dance_grpo(), eta=0.5, checkpointing=False)


# The run


def test_a_run_fills_its_tables_resumes_and_draws(inputs, tmp_path, capsys, monkeypatch):
    whole = convergence.run(config(inputs, tmp_path / "whole"))
    assert "minus exact" in capsys.readouterr().out
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
    assert convergence.plot(whole).stat().st_size > 10_000
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
    assert calls == 5 + 2 + 6  # the interrupted cell from where it was, then the other seed's
    for name in ("convergence.csv", "convergence-training.csv"):
        assert resumed.with_name(name).read_bytes() == whole.with_name(name).read_bytes(), name
    assert not training.states_folder(resumed.parent).exists()


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "flow_grpo_fast", "arms": ("window",)}, "flow_grpo_fast has no arm window"),
        ({"steps": 0}, "must be at least 1"),
        ({"eval_images": 1}, "evaluate 2 or more"),
        ({"recipe": Overrides(scheme="jagg")}, "choose some with --arms"),
        ({"recipe": Overrides(group_size=5)}, "comfortable exact: 12 steps do not divide"),
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
    from repro.backbones import load
    from repro.rewards import load as load_reward

    clip = load_reward(inputs["other"])
    policy = Policy(load(inputs["model"]))
    recipe = replace(dance_grpo(bundled=True), sampling_steps=3)
    first = evaluation.Evaluator(evaluation.Prompts(list(CAPTIONS[:2]), None), 2, clip, [])(policy, recipe)
    # Its own first images as the truth: half of the pairs are then identical.
    known = evaluation.Prompts(list(CAPTIONS[:2]), first.images)
    values = evaluation.Evaluator(known, 2, clip, [])(policy, recipe).values
    assert values["reward"] == first.values["reward"] and values["diversity"] == first.values["diversity"]
    assert values["similarity"] == pytest.approx(1 - values["diversity"] / 2, abs=1e-5)
    broken = UserScorer("broken", lambda images, prompts: [math.nan] * len(images))
    with pytest.raises(ValueError, match="evaluation stopped, .*scorer broken returned") as caught:
        evaluation.Evaluator(known, 2, clip, [broken])(policy, recipe)
    assert "\n" not in str(caught.value)


CELL = Cell("comfortable", "exact", 1.0, 0)


@pytest.fixture
def work(tmp_path):
    """What resuming asks of a run of 4 steps, evaluated every 2; step 3 was skipped for a fault."""
    provenance = {"config": {}, "seed": 0}
    key = (*training.CELL, "step")
    evaluations = SharedTable(
        ALONE, tmp_path / "e.csv", training.COLUMNS, (*key, "metric"), provenance=provenance
    )
    rows = SharedTable(ALONE, tmp_path / "t.csv", training.TRAINING_COLUMNS, key, provenance=provenance)
    timings = SharedTable(ALONE, tmp_path / "s.csv", training.TIMING_COLUMNS, key, provenance=provenance)
    settings = SimpleNamespace(device="cpu", evaluate_every=2, steps=4)
    tables = training.Tables(evaluations, rows, timings)
    with evaluations, rows, timings:
        made = training.Work(settings, None, None, None, [], None, tables, provenance, ALONE)
        for step in range(5):
            if step:
                rows.append(trained(step, "scorer down" if step == 3 else None))
                timings.append({**CELL._asdict(), "step": step, **dict.fromkeys(PHASES, 0.1)})
            if made.due(CELL, step):
                common = {"model": "m", "algorithm": "dance_grpo", **CELL._asdict(), "step": step}
                evaluations.append({**common, "metric": "reward", "value": 0.5})
        yield made


def trained(step: int, fault: str | None = None, **changes) -> dict:
    zeros = {name: kind() for name, kind in METRICS.items()}
    return {**CELL._asdict(), **zeros, "step": step, "fault": fault, **changes}


def test_a_step_made_again_takes_the_place_of_a_fault_alone(work):
    make_way(work, CELL, trained(2))
    assert len(read(work.tables.training.path)) == 4
    with pytest.raises(ValueError, match="step 2 of .* was made again with loss=0.5, not the 0 in"):
        make_way(work, CELL, trained(2, loss=0.5))
    work.config.device = "cuda"  # rounds as it likes
    make_way(work, CELL, trained(2, loss=0.5))
    assert len(read(work.tables.training.path)) == 4
    make_way(work, CELL, trained(3))
    assert [read(table.path).step.max() for table in work.tables] == [2, 2, 2]


def test_resuming_needs_the_rows_up_to_the_state(work):
    require_rows(work, CELL, 4)
    with pytest.raises(ValueError, match="state after step 5, .* lack its step 5: restore them"):
        require_rows(work, CELL, 5)
    work.tables.evaluations.drop(lambda row: row["step"] == "2")
    require_rows(work, CELL, 1)
    with pytest.raises(ValueError, match="lack its step 2"):
        require_rows(work, CELL, 3)


def test_a_card_does_not_make_a_model_small(inputs, tmp_path):
    assert load_model(inputs["model"]).small
    large = tmp_path / "large" / "transformer"
    large.mkdir(parents=True)
    (large.parent / "repro_card.json").write_text("{}")
    with open(large / "model.safetensors", "wb") as file:
        file.truncate(2**30)
    assert not load_model(str(large.parent)).small


# Reading back


def test_outcomes_are_rises_over_the_start():
    outcomes = runs(fake({("exact", 1.0): [0.8], ("jagg", 1.0): [0.4]}))
    exact = outcomes[outcomes.arm == "exact"].iloc[0]
    assert exact.start == 0.5
    assert exact.final == pytest.approx(0.75)  # mean of the last two of eight: 0.7 and 0.8
    assert exact.curve == pytest.approx(0.45)
    assert differences(outcomes, ("jagg", 1.0), ("exact", 1.0), "curve").tolist() == pytest.approx([-0.225])


def test_incomplete_runs_are_left_out(tmp_path):
    csv = tmp_path / "convergence.csv"
    (tmp_path / "convergence.provenance.json").write_text('{"config": {"steps": 8}}')
    table = fake({("exact", 1.0): [0.8, 0.8, 0.8]})
    table = table[~((table.seed == 1) & (table.step > 4)) & ~((table.seed == 2) & (table.step == 0))]
    table.to_csv(csv, index=False)
    assert set(complete(csv).seed) == {0}
    # Steps are the configured ones: neither runs that all stopped halfway nor a longer setting's pass.
    for unfinished in (table[table.step < 8], table.assign(setting="sparse")):
        unfinished.to_csv(csv, index=False)
        with pytest.raises(ValueError, match="no complete training run yet"):
            complete(csv)


def test_the_best_learning_rate_of_a_seed_is_chosen_by_the_others():
    rises = {
        ("exact", 1.0): [0.8, 0.0, 0.1],
        ("exact", 2.0): [0.0, 0.2, 0.1],
        ("jagg", 1.0): [0.2] * 3,
        ("jagg", 2.0): [0.4] * 3,
        ("subset", 1.0): [0.3] * 3,
    }
    outcomes = runs(fake(rises))
    best = best_factors(outcomes)  # seed 0 is why factor 1 looks best, so it alone is not judged at it
    assert best.to_dict("list") == {"exact": [2.0, 1.0, 1.0], "jagg": [2.0] * 3}
    of_metric = outcomes[outcomes.metric == "reward"]
    assert at_factors(of_metric, best, "curve").exact.tolist() == pytest.approx([0, 0, 0.1 * 9 / 16])
    missing = best.assign(exact=5.0)
    assert at_factors(of_metric, missing, "curve").exact.isna().all()


def test_the_learning_sentence_keeps_to_its_bar():
    assert "it learned" in learning_sentence(runs(fake({("exact", 1.0): [0.5, 0.6, 0.55]})))
    assert "too little" in learning_sentence(runs(fake({("exact", 1.0): [0.0, 0.6, 0.1]})))
    assert "needs two seeds" in hacking_sentence(runs(fake({("exact", 1.0): [0.5]})))


def test_costs_are_the_cost_models(inputs, tmp_path):
    csv = convergence.run(config(inputs, tmp_path, seeds=1, steps=1))
    cost = spent(csv).set_index("arm").cost
    # 2 images: 5 sampling steps; 4 trained steps with kept velocities, forward and backward 3.
    assert cost["exact"] == 2 * (5 + 4 * 3) and cost["jagg"] == 2 * (5 + 2 * 3)


# Statistics


def test_comparison_against_scipy():
    d = np.array([0.02, 0.01, 0.03, 0.015, 0.022, 0.018])
    result = compare(d, 0.05)
    test = stats.ttest_1samp(d, 0)
    low, high = test.confidence_interval(0.95)
    assert (result.mean - result.half, result.mean + result.half) == pytest.approx((low, high))
    assert result.p_sign_flip == pytest.approx(2 / 64)
    one_sided = [stats.ttest_1samp(d, 0.05, alternative="less").pvalue]
    one_sided += [stats.ttest_1samp(d, -0.05, alternative="greater").pvalue]
    assert result.p_equivalence == pytest.approx(max(one_sided))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.02, 0.021, 0.019], "higher"),
        ([-0.02, -0.021, -0.019], "lower"),
        ([0.001, -0.001, 0.0005], "equal within the margin"),
        ([0.002, 0.0021, 0.0019], "equal within the margin, though not zero"),
        ([0.05, -0.05, 0.01], "undecided"),
        ([0.0, 0.0, 0.0], "equal within the margin"),
        ([0.02], "undecided"),
    ],
)
def test_verdicts(values, verdict):
    assert compare(values, 0.01).verdict == verdict


def test_equality_is_rarely_claimed_of_a_difference_at_the_margin():
    rng = np.random.default_rng(0)
    claims = [compare(rng.normal(0.01, 0.005, 6), 0.01).p_equivalence < 0.05 for _ in range(300)]
    assert np.mean(claims) == pytest.approx(0.05, abs=0.03)


def test_a_margin_that_is_as_noisy_as_the_baseline_is_tested_by_seed():
    rng = np.random.default_rng(0)
    # The method reaches exactly 0.9 of the baseline, which the margin 0.1 excludes; the seeds' effects are
    # shared, so with the mean's margin held fixed equality would be claimed far more often than in 5 %.
    claims = []
    for _ in range(300):
        baseline = rng.normal(0.1, 0.05, 6)
        method = 0.9 * baseline + rng.normal(0, 0.001, 6)
        claims.append(compare(method - baseline, 0.1 * baseline).p_equivalence < 0.05)
    assert np.mean(claims) == pytest.approx(0.05, abs=0.03)
    d, margins = np.array([-0.02, 0.01, 0.0]), np.array([0.03, 0.05, 0.04])
    one_sided = [stats.ttest_1samp(x, 0, alternative="greater").pvalue for x in (margins + d, margins - d)]
    assert compare(d, margins).p_equivalence == pytest.approx(max(one_sided))


def test_samples_strip_holds_the_first_images(tmp_path):
    from PIL import Image

    images = torch.stack([torch.full((3, 4, 4), value) for value in (0.0, 1.0, 0.5)])
    training.save_images(images, tmp_path / "s" / "strip.png", count=2)
    pixels = np.asarray(Image.open(tmp_path / "s" / "strip.png"))
    assert pixels.shape == (4, 8, 3) and pixels[0, 0, 0] == 0 and pixels[0, 7, 0] == 255
