"""The update, scheme by scheme and chunk by chunk, without checkpointing, against the plain loop."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from conftest import Batch, synchronize
from torch import Tensor

from experiments.benchmarks.report import BARS, CORE_SHARE
from repro.core.schemes.jagg import jagg
from repro.core.schemes.scheme import exact

W = 4
UPDATES = {
    "exact-chunk-1": (exact, 1, False),
    "exact-chunk-2": (exact, 2, False),
    "exact-chunk-4": (exact, 4, False),
    "jagg-paper": (lambda times: jagg(times, W), 2, False),
    "jagg-chunk-1": (lambda times: jagg(times, W), 1, False),
    "jagg-chunk-4": (lambda times: jagg(times, W), 4, False),
    "jagg-rollout-velocities": (lambda times: jagg(times, W), 2, True),
}


@pytest.mark.parametrize("name", UPDATES)
def test_update(timed: Any, benchmark: Any, batch: Batch, name: str, full_size: bool) -> None:
    build, chunk, kept = UPDATES[name]
    scheme = build(batch.times)
    seconds = timed(lambda: batch.update(scheme, chunk, kept))
    benchmark.extra_info["plain_loop_s"] = batch.plain_seconds
    benchmark.extra_info["times_as_fast"] = batch.plain_seconds / seconds
    if full_size:
        assert batch.plain_seconds / seconds >= BARS.get(f"update-{name}", 0.0)


def test_core_without_the_network(timed: Any, benchmark: Any, batch: Batch, full_size: bool) -> None:
    """The core's own work in the paper's layout: z * w stands for the network."""
    weight = torch.ones((), requires_grad=True, device=batch.backbone.device)

    def times_weight(steps: Any, latents: Tensor) -> Tensor:
        return latents * weight

    scheme = jagg(batch.times, W)
    batch.update(scheme)  # warm-up
    start = time.perf_counter()
    batch.update(scheme)
    synchronize(batch.backbone.device)
    update = time.perf_counter() - start
    core = timed(lambda: batch.update(scheme, network=times_weight))
    benchmark.extra_info["core_share"] = core / update
    if full_size:
        assert core / update < CORE_SHARE


def test_the_plain_loop_computes_the_same_gradient(batch: Batch) -> None:
    few = batch.first(2)
    batched = few.gradient(lambda: few.update(exact(few.times)))
    difference = few.gradient(few.plain) - batched
    assert float(difference.norm() / batched.norm()) < 1e-5
