"""The training loop interrupted or killed, and resumed: the uninterrupted run's rows and weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import CAPTIONS
from small_trainer import PROVENANCE, RECIPE, make, weights

from repro.training.checkpoint import Checkpoints
from repro.training.metrics import StepRecord
from repro.training.trainer import train


def test_prompts_are_drawn_without_replacement_in_each_pass(flux):
    trainer = make(flux)
    drawn = []
    for step in range(5):
        trainer.done = step
        drawn += trainer._batch_prompts()
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == sorted(CAPTIONS[:5])


def test_a_resumed_run_is_the_uninterrupted_one(flux, tmp_path):
    recipe = replace(RECIPE, scheme="jagg", ema=0.9, schedule="cosine", updates=2, stale="correct")
    whole: dict[int, dict] = {}
    first = make(flux, recipe)
    train(first, 4, record=lambda r: whole.update({r.metrics["step"]: r.metrics}))

    checkpoints = Checkpoints(tmp_path, PROVENANCE)

    def even(done: int) -> bool:
        return done % 2 == 0

    seen: list[dict] = []

    def until_the_third(record: StepRecord) -> None:
        seen.append(record.metrics)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make(flux, recipe), 4, record=until_the_third, checkpoints=checkpoints, save=even)
    visited: list[int] = []
    second = make(flux, recipe)
    train(
        second,
        4,
        record=lambda r: seen.append(r.metrics),
        visit=visited.append,
        checkpoints=checkpoints,
        save=even,
    )
    assert [m["step"] for m in seen] == [1, 2, 3, 3, 4] and visited == [2, 3, 4]
    assert all(m == whole[m["step"]] for m in seen)
    assert torch.equal(weights(second), weights(first))
    with first.policy.averaged(), second.policy.averaged():
        assert torch.equal(weights(second), weights(first))


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = ["tests", "."]
import torch
from small_trainer import PROVENANCE, make, weights
from repro.training.checkpoint import Checkpoints
from repro.training.metrics import METRICS
from repro.results import Table
from repro.training.trainer import train

model, out, kill_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
rows = {"metrics": []}
def record(result):
    rows["metrics"].append(result.metrics)
    if result.metrics["step"] == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
trainer = make(model, steps=4)
checkpoints = Checkpoints(out / "state", PROVENANCE)
train(trainer, 4, record=record, checkpoints=checkpoints, save=lambda done: done % 2 == 0, rows=rows)
Table(out / "metrics.csv", METRICS, ("step",), provenance=PROVENANCE).append(*rows["metrics"])
torch.save(weights(trainer), out / "weights.pt")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_killed_and_rerun_gives_the_same_csv_and_weights(flux, tmp_path):
    def run(out: Path, kill_at: int) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", KILLED, str(flux), str(out), str(kill_at)]
        return subprocess.run(command, env=environment, cwd=Path(__file__).parents[2]).returncode

    assert run(tmp_path / "killed", 3) == -signal.SIGKILL
    assert run(tmp_path / "killed", 0) == 0
    assert run(tmp_path / "whole", 0) == 0
    for name in ("metrics.csv", "weights.pt"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
