"""Laps of an update: all of its time, cut at the network's calls, each over forwards timed beside it."""

from __future__ import annotations

import time

import pandas as pd
import pytest
import torch

from experiments.laps import Laps, prices
from repro.stopwatch import Stopwatch


def run(calls: int, seconds: float = 0.0) -> tuple[Laps, Stopwatch]:
    clock, latents = Stopwatch(), torch.ones(1, 2)
    with clock("update"), Laps(clock, lambda steps, z: 2 * z, latents) as laps:
        watched = laps.watched(lambda steps, z: 3 * z)
        time.sleep(seconds)
        for step in range(calls):
            assert torch.equal(watched([step], latents), 3 * latents)
            time.sleep(seconds)
    return laps, clock


def test_laps_begin_at_calls_and_are_all_of_the_time() -> None:
    laps, clock = run(3, seconds=0.01)
    assert len(laps.laps) == 4
    assert min(lap.seconds for lap in laps.laps) >= 0.01
    # The forwards beside the laps are not the update's.
    assert sum(lap.seconds for lap in laps.laps) == pytest.approx(clock.seconds["update"], rel=0.1)
    assert all(lap.forward > 0 for lap in laps.laps) and clock.seconds["beside"] > 0


def test_a_forward_is_the_mean_of_those_on_either_side() -> None:
    clock, slow = Stopwatch(), iter([0.0, 0.04, 0.0])

    def forward(steps: object, z: torch.Tensor) -> torch.Tensor:
        time.sleep(next(slow))
        return z

    with Laps(clock, forward, torch.ones(1)) as laps:
        laps.watched(lambda steps, z: z)([0], torch.ones(1))
    assert [lap.forward for lap in laps.laps] == pytest.approx([0.02, 0.02], rel=0.3)


def test_prices_are_sums_of_laps_in_forwards() -> None:
    rows = pd.DataFrame(
        [
            ("exact", 0, 0, 0, 1.0, 1.0),
            ("exact", 0, 0, 1, 9.0, 3.0),  # the machine was slow
            ("exact", 1, 0, 0, 2.0, 2.0),
            ("exact", 1, 0, 1, 3.0, 1.0),
            ("exact", 1, 1, 0, 2.0, 2.0),
            ("exact", 1, 1, 1, 50.0, 1.0),  # something else ran
            ("exact", 1, 2, 0, 3.0, 1.0),
            ("exact", 1, 2, 1, 3.0, 1.0),
            ("jagg", 0, 0, 0, 4.0, 2.0),
        ],
        columns=["scheme", "round", "repetition", "lap", "seconds", "forward_s"],
    )
    assert prices(rows, ["scheme"]).to_dict() == {("exact", 0): 4.0, ("exact", 1): 4.0, ("jagg", 0): 2.0}
