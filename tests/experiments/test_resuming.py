"""What a training run's tables must hold where it goes on, and what gives way to steps made again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from experiments.convergence import training
from experiments.convergence.arms import Cell
from experiments.convergence.resuming import make_way, require_rows
from repro.distributed.ranks import ALONE
from repro.results import read
from repro.shared_table import SharedTable
from repro.training.metrics import METRICS, PHASES

CELL = Cell("comfortable", "exact", 1.0, 0)


@pytest.fixture
def work(tmp_path):
    """What resuming asks of a run of 4 steps, evaluated every 2; step 3 was skipped for a fault."""
    provenance = {"config": {}, "seed": 0, "ranks": 2}
    key = (*training.CELL, "step")
    evaluations = SharedTable(
        ALONE, tmp_path / "e.csv", training.COLUMNS, (*key, "metric"), provenance=provenance
    )
    rows = SharedTable(ALONE, tmp_path / "t.csv", training.TRAINING_COLUMNS, key, provenance=provenance)
    timings = SharedTable(ALONE, tmp_path / "s.csv", training.TIMING_COLUMNS, key, provenance=provenance)
    settings = SimpleNamespace(device="cpu", evaluate_every=2, steps=4)
    tables = training.Tables(evaluations, rows, timings)
    with evaluations, rows, timings:
        made = training.Work(settings, None, None, None, [], None, tables, {**provenance, "ranks": 1}, ALONE)
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
    make_way(work, CELL, trained(2, loss=1e-4))  # as another number of ranks rounds
    with pytest.raises(ValueError, match="step 2 of .* was made again with updates=1, not the 0 in"):
        make_way(work, CELL, trained(2, updates=1))
    with pytest.raises(ValueError, match="step 2 of .* was made again with loss=0.5, not the 0 in"):
        make_way(work, CELL, trained(2, loss=0.5))
    with pytest.raises(ValueError, match="made again with learning_rate=0.0001, not the 0 in"):
        make_way(work, CELL, trained(2, learning_rate=1e-4))
    work.provenance["ranks"] = 2  # as the table was made
    with pytest.raises(ValueError, match="made again with loss=1e-08, not the 0 in"):
        make_way(work, CELL, trained(2, loss=1e-8))
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
