"""The collectives of every layout under FSDP1 and FSDP2, and their gradients, on two gloo ranks.

The ranks are started once; what they find is asserted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from experiments.allgather.analysis import findings
from experiments.allgather.collectives import Collectives, count, per_block
from experiments.allgather.config import COLUMNS, FSDP1, FSDP2, KEY, LAYOUTS, WRAPPERS, Config
from experiments.allgather.figure import plot
from experiments.allgather.layouts import problem, update
from experiments.allgather.measure import run
from experiments.allgather.wrappers import WRAPPERS as WRAP
from experiments.allgather.wrappers import gathered_size
from experiments.common.findings import Judgement
from repro.distributed.ranks import Ranks, spawn
from repro.results import Table

GROUPS, W = 2, 4
ROWS = [
    (wrapper, *row)
    for wrapper in WRAPPERS
    for row in (
        *((layout, False, held_back) for layout in LAYOUTS for held_back in (False, True)),
        ("jagg-early", True, False),
        ("jagg-joint", True, False),
        ("jagg-stacked", True, True),
    )
]


def on_each_rank(ranks: Ranks) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The rows, and under either wrapper how often a stacked group runs a layer under checkpointing."""
    ran = {}
    for wrapper in WRAPPERS:
        case = problem(ranks, 1, 2, checkpointing=True, wrap=WRAP[wrapper])
        calls: list[None] = []
        parts = case.policy.module.named_modules()
        layer = next(m for name, m in parts if "transformer_blocks" in name and isinstance(m, nn.Linear))
        layer.register_forward_hook(lambda *_, calls=calls: calls.append(None))
        update(case, "jagg-stacked", 2)
        ran[wrapper] = len(calls)
    return count(ranks, GROUPS, W, 0, ROWS), ran


@pytest.fixture(scope="module")
def found() -> tuple[list[dict[str, Any]], dict[str, int]]:
    return spawn(on_each_rank, 2)[0]


@pytest.fixture(scope="module")
def rows(found: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[column] for column in KEY): row for row in found[0]}


@pytest.mark.parametrize("key", ROWS, ids=lambda k: "-".join(map(str, k)))
def test_the_gradient_is_the_single_processs(rows: Any, key: Any) -> None:
    assert rows[key]["gradient_error"] < 1e-5


# Per block and group: all-gathers forward and backward; per block and update: reduce-scatters, each backward,
# held.
COLLECTIVES = {
    "exact": (4, 4, 8, 1),
    "exact-stacked": (1, 1, 2, 1),
    "jagg-early": (6, 2, 4, 1),
    "jagg-joint": (4, 1, 2, 1),
    "jagg-stacked": (2, 1, 2, 1),
    "jagg-rollout": (1, 1, 2, 1),
}
# Gathered for each graph. Autograd hands a parameter both graphs' sum at once; what was held back of the
# first group makes one reduce more in the last.
JOINT_ON_FSDP2 = (4, 2, 2, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_collectives_of_a_block(rows: Any, wrapper: str, layout: str) -> None:
    expected = JOINT_ON_FSDP2 if (wrapper, layout) == (FSDP2, "jagg-joint") else COLLECTIVES[layout]
    forward, backward, each, held = expected
    for held_back, scatters in ((False, each), (True, held)):
        row = rows[wrapper, layout, False, held_back]
        assert row["all_gathers_forward"] == forward * GROUPS
        assert row["all_gathers_backward"] == backward * GROUPS
        assert row["reduce_scatters_backward"] == scatters


def test_checkpointing_runs_a_block_again_and_gathers_no_more(found: Any, rows: Any) -> None:
    assert found[1] == {FSDP1: 2, FSDP2: 2}
    for wrapper, layout, checkpointing, held_back in ROWS:
        if checkpointing:
            with_, without = (rows[wrapper, layout, on, held_back] for on in (True, False))
            for column in ("all_gathers_forward", "all_gathers_backward", "reduce_scatters_backward"):
                assert with_[column] == without[column]


def test_the_table_is_judged_and_drawn(found: Any, tmp_path: Path) -> None:
    csv = tmp_path / "allgather.csv"
    Table(csv, COLUMNS, KEY, provenance={}).append(*found[0])
    assert findings(csv)["all-gathers"].judgement == Judgement.AGREES
    assert plot(csv).stat().st_size > 4_000


@pytest.fixture
def three_ranks() -> Iterator[DeviceMesh]:
    """Three ranks of which this process is one, and the others are made up."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    try:
        yield init_device_mesh("cpu", (3,))
    finally:
        distributed.destroy_process_group()


def test_collectives_are_as_large_as_the_padded_block(three_ranks: DeviceMesh) -> None:
    block = fully_shard(nn.Sequential(nn.Linear(3, 5)), mesh=three_ranks)
    with Collectives() as log:
        block(torch.ones(1, 3)).sum().backward()
    assert gathered_size(nn.Linear(3, 5), 3) == 24  # 6 x 3 and 6
    assert log.calls == [("backward", "all_gather", 24), ("backward", "reduce_scatter", 24)]
    with pytest.raises(RuntimeError, match=r"one of \[20\]: there were those of \[24\]"):
        per_block(log, (20,))


def test_a_table_of_one_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="take 2 or more ranks"):
        run(Config(ranks=1, out=tmp_path))
