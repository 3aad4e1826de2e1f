"""Sampling a batch, decoding it, and one forward of the network."""

from __future__ import annotations

from typing import Any

import torch
from conftest import Batch

from experiments import paper
from repro.core.rollout import sample
from repro.core.sde import Dance


def test_rollout(timed: Any, batch: Batch) -> None:
    noise = batch.trajectory.latents[0]
    generator = torch.Generator().manual_seed(0)
    timed(lambda: sample(batch.network, noise, batch.sigmas, Dance(paper.ETA.low), generator))


def test_forward(timed: Any, batch: Batch) -> None:
    def forward() -> None:
        with torch.no_grad():
            batch.network([0], batch.trajectory.latents[:1])

    timed(forward)


def test_decode(timed: Any, batch: Batch) -> None:
    timed(lambda: batch.backbone.decode(batch.trajectory.final))
