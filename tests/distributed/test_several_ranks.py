"""The experiments on two gloo ranks: the single process's tables, resumed on another number of ranks.

The ranks are started once; what they leave is checked here. One command is run as a user would, by torchrun.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import CAPTIONS, build_clip, build_flux, build_hpsv2

from experiments.ablation import measure as ablation
from experiments.allgather import measure as allgather
from experiments.allgather.analysis import findings
from experiments.common.findings import Judgement
from experiments.convergence import measure as convergence
from experiments.cosine import measure as cosine
from experiments.speedup import measure as speedup
from experiments.speedup.analysis import laps_path
from repro.distributed.ranks import ALONE, Ranks, join, spawn
from repro.models import load
from repro.results import HIDDEN, read
from repro.training.recipe import dance_grpo, flow_grpo_fast
from repro.training.trainer import Trainer

TABLES = ("convergence.csv", "convergence-training.csv")
SPLIT = replace(
    dance_grpo(bundled=True),
    sampling_steps=5,
    prompts=1,
    images=8,
    updates=2,
    stale="recompute",
    micro_batch=1,
    learning_rate=1e-3,
    kl_weight=0.1,
    guidance=1.5,
)
"""One prompt, whose images the ranks share, and two updates on them, held back by a reference."""
FAULT = "scorer test_several_ranks:failing_once raised RuntimeError: rank 1 is out"


def training(folder: Path, out: str, **changes: Any) -> convergence.Config:
    """Two steps of two prompts, with a moving average and a state after each step."""
    recipe = replace(
        dance_grpo(bundled=True), sampling_steps=5, prompts=2, images=2, learning_rate=1e-3, ema=0.5
    )
    config = convergence.Config(
        model=str(folder / "random-flux"),
        reward=f"hpsv2:{folder / 'hpsv2'}",
        eval_rewards=(f"clipscore:{folder / 'clip'}",),
        prompts_file=folder / "prompts.txt",
        eval_prompts_file=folder / "prompts.txt",
        arms=("jagg",),
        seeds=1,
        steps=2,
        evaluate_every=2,
        checkpoint_every=1,
        train_prompts=5,
        eval_prompts=2,
        eval_images=2,
        recipe=recipe,
        out=folder / out,
    )
    return replace(config, **changes)


def measuring(folder: Path, out: str) -> cosine.Config:
    """What --quick measures on two ranks: 4 prompts, for its 3 do not divide over them."""
    return cosine.Config(
        model=str(folder / "random-flux"),
        reward=f"hpsv2:{folder / 'hpsv2'}",
        prompts_file=folder / "prompts.txt",
        variants=("base",),
        prompts=4,
        images=2,
        samples=1,
        sampling_steps=5,
        out=folder / out,
    )


def comparing(folder: Path, out: str) -> ablation.Config:
    """Flow-GRPO-Fast with adapters: arms of more and of fewer backwards."""
    recipe = replace(
        flow_grpo_fast(bundled=True),
        sampling_steps=6,
        window_range=(0, 5),
        prompts=2,
        images=2,
        learning_rate=1e-2,
        lora_rank=2,
    )
    changes = {"arms": ("exact", "jagg", "subset"), "regimes": ("comfortable",)}
    config = training(folder, out, recipe=recipe, algorithm="flow_grpo_fast", **changes)
    return ablation.Config(runs=config)


def timing(folder: Path) -> speedup.Config:
    """A step of one prompt, half of its images a rank, by every algorithm."""
    return speedup.Config(
        model=str(folder / "random-flux"),
        reward=f"hpsv2:{folder / 'hpsv2'}",
        prompts_file=folder / "prompts.txt",
        variations=("base",),
        schemes=("jagg",),
        rounds=1,
        prompts=1,
        images=4,
        out=folder / "two",
    )


def failing_once(images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
    """Fails in the first training step, after the evaluation of the start; with ranks on the second alone."""
    failing_once.calls += 1  # type: ignore[attr-defined]
    if failing_once.calls == 2 and torch.distributed.get_rank() == 1:  # type: ignore[attr-defined]
        raise RuntimeError("rank 1 is out")
    return images.mean(dim=(1, 2, 3))


failing_once.calls = 0  # type: ignore[attr-defined]


def stop_in_step(number: int, config: convergence.Config, ranks: Ranks) -> None:
    """Leave the last state before that step, as a run that was interrupted does."""
    step = Trainer.step

    def stopping(self: Trainer) -> Any:
        if self.done == number - 1:
            raise KeyboardInterrupt
        return step(self)

    Trainer.step = stopping  # type: ignore[method-assign]
    try:
        convergence.run(config, ranks)
    except KeyboardInterrupt:
        pass
    finally:
        Trainer.step = step  # type: ignore[method-assign]


def on_each_rank(ranks: Ranks, folder: Path) -> str:
    convergence.run(training(folder, "two", save=True), ranks)
    stop_in_step(2, training(folder, "two-then-one"), ranks)
    convergence.run(training(folder, "fault", reward="test_several_ranks:failing_once"), ranks)
    convergence.run(training(folder, "one-then-two"), ranks)
    convergence.run(training(folder, "split-two", recipe=SPLIT), ranks)
    ablation.run(comparing(folder, "two"), ranks)
    cosine.run(replace(measuring(folder, "two"), quick=True, prompts=16), ranks)
    speedup.run(timing(folder), ranks)
    allgather.run(allgather.Config(groups=1, group_size=2, out=folder / "two"), ranks)
    try:
        ranks.on_main(int, "no number")
    except ValueError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    build_flux(folder / "random-flux")
    (folder / "hpsv2").mkdir()
    build_hpsv2(folder / "hpsv2")
    build_clip(folder / "clip")
    (folder / "prompts.txt").write_text("\n".join(CAPTIONS))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[str]:
    """What the ranks returned; before and after them, the single process's runs."""
    stop_in_step(2, training(folder, "one-then-two"), ALONE)
    found = spawn(on_each_rank, 2, folder)
    convergence.run(training(folder, "one", save=True))
    return found


def assert_same(found: Path, expected: Path) -> None:
    """Equal texts, and numbers up to rounding, also that of differences, such as ratio - 1."""
    atol = 1e-5 if expected.name == "ablation.csv" else 1e-6
    pd.testing.assert_frame_equal(read(found), read(expected), check_exact=False, rtol=1e-5, atol=atol)


def tables(folder: Path, out: str) -> Path:
    return folder / out / "random-flux-dance_grpo"


def test_training_is_the_single_processs(found: list[str], folder: Path) -> None:
    for name in TABLES:
        assert_same(tables(folder, "two") / name, tables(folder, "one") / name)
    assert not list((tables(folder, "two") / HIDDEN).glob("*/state-*"))


def test_a_prompts_images_are_split_over_ranks(found: list[str], folder: Path) -> None:
    convergence.run(training(folder, "split-one", recipe=SPLIT))
    for name in TABLES:
        assert_same(tables(folder, "split-two") / name, tables(folder, "split-one") / name)


def test_adapters_and_contrasts_of_flow_grpo_fast(found: list[str], folder: Path) -> None:
    one = ablation.run(comparing(folder, "one"))
    two = folder / "two" / one.parent.name
    for name in (*TABLES, one.name):
        assert_same(two / name, one.parent / name)


def test_the_trained_policy_is_whole(found: list[str], folder: Path) -> None:
    (saved,) = (tables(folder, "two") / "policies").iterdir()
    start, two = weights(folder / "random-flux"), weights(saved)
    one = weights(tables(folder, "one") / "policies" / saved.name)
    assert two.keys() == one.keys() == start.keys()
    assert square_distance(two, one) < 1e-4 * square_distance(one, start)


def weights(policy: Path) -> dict[str, torch.Tensor]:
    return load(policy).transformer.state_dict()


def square_distance(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    return sum(float((some[name] - others[name]).square().sum()) for name in others)


def check_one_process_resumes(folder: Path, out: str) -> None:
    there = tables(folder, out)
    (state,) = (there / HIDDEN).glob("*/state-000001")
    assert (state / ".metadata").is_file() and not (there / TABLES[1]).exists()
    convergence.run(training(folder, out))
    for name in TABLES:
        assert_same(there / name, tables(folder, "one") / name)


def test_one_process_resumes_what_two_ranks_left(found: list[str], folder: Path) -> None:
    check_one_process_resumes(folder, "two-then-one")


def test_two_ranks_resume_what_one_process_left(found: list[str], folder: Path) -> None:
    for name in TABLES:
        assert_same(tables(folder, "one-then-two") / name, tables(folder, "one") / name)


def test_a_scorer_that_fails_on_one_rank_is_every_ranks_fault(found: list[str], folder: Path) -> None:
    rows = read(tables(folder, "fault") / TABLES[1])
    assert list(rows.fault.fillna("")) == [FAULT, ""] and list(rows.updates) == [0, 1]


def lose_rank_0(rank: int, folder: Path) -> None:
    """Two ranks in training; rank 0, which holds the tables, is killed in the second step's update."""
    accumulate = Trainer.accumulate

    def dying(self: Trainer, *args: Any) -> Any:
        if self.ranks.main and self.done == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return accumulate(self, *args)

    Trainer.accumulate = dying  # type: ignore[method-assign]
    with join(url=f"file://{folder}/lost", rank=rank, world_size=2) as ranks:
        convergence.run(training(folder, "lost-a-rank"), ranks)


def test_training_that_loses_a_rank_ends_and_resumes(
    found: list[str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = torch.multiprocessing.spawn(lose_rank_0, (folder,), nprocs=2, join=False)
    try:
        for process, seconds in zip(started.processes, (600, 60), strict=True):
            process.join(seconds)
    finally:
        for process in started.processes:
            process.kill()
    assert [process.exitcode for process in started.processes] == [-signal.SIGKILL, 1]
    assert "repro: rank 1 of 2 lost another rank" in capfd.readouterr().err
    check_one_process_resumes(folder, "lost-a-rank")


def test_cosine_is_the_single_processs(found: list[str], folder: Path) -> None:
    expected = cosine.run(measuring(folder, "one"))
    assert_same(folder / "two" / "random-flux" / "cosine.csv", expected)


def test_what_rank_0_refuses_all_refuse(found: list[str]) -> None:
    assert all("no number" in complaint for complaint in found)


def test_prompts_that_do_not_divide_are_refused_in_one_line(folder: Path) -> None:
    command = ["run", "cosine", "--prompts", "3", "--variants", "base", "--out", str(folder / "refused")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run = subprocess.run(
        [*torchrun, "-m", "repro", *command],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode != 0 and "exitcode  : 2" in run.stderr
    complaints = [line for line in run.stderr.splitlines() if line.startswith("repro:")]
    assert complaints == [
        "repro: 3 prompts of variant base do not divide over 2 ranks: take a multiple of it"
    ]
    assert not (folder / "refused").exists()


def test_steps_are_timed_on_ranks_together(found: list[str], folder: Path) -> None:
    csv = folder / "two" / "random-flux" / "speedup.csv"
    table = read(csv)
    assert len(table) == 6 and (table.samples == 4).all() and (table.batch == 2).all()
    jagg, exact = (table[table.scheme == scheme] for scheme in ("jagg-time", "exact"))
    assert list(2 * jagg.backwards) == list(exact.backwards) == [20, 4]
    # Short updates are repeated as often on either rank, or a sharded pass would wait for ever.
    assert read(laps_path(csv)).repetition.max() > 0


def test_collectives_are_counted_on_the_ranks_that_there_are(found: list[str], folder: Path) -> None:
    csv = folder / "two" / "allgather" / "allgather.csv"
    table = read(csv)
    assert (table.ranks == 2).all() and (table.gradient_error < 1e-5).all()
    assert findings(csv)["all-gathers"].judgement == Judgement.AGREES
