"""Laps of an update: all of its time, cut at the network's calls, each over forwards timed beside it."""

from __future__ import annotations

import time

import pandas as pd
import pytest
import torch

from experiments.speedup.analysis import prices
from experiments.speedup.laps import Laps
from repro.training.stopwatch import Stopwatch


class Clock:
    """Seconds pass only when something is said to take them."""

    now = 0.0

    def take(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def test_laps_begin_at_calls_and_are_all_of_the_time(wall: Clock) -> None:
    clock, latents = Stopwatch(), torch.ones(1, 2)

    def network(steps: object, z: torch.Tensor) -> torch.Tensor:
        wall.take(2)
        return 3 * z

    with clock("update"), Laps(clock, lambda: wall.take(7), latents.device) as laps:
        watched = laps.watched(network)
        wall.take(1)
        for step in range(3):
            assert torch.equal(watched([step], latents), 3 * latents)
            wall.take(step)
    assert [lap.seconds for lap in laps.laps] == [1, 2 + 0, 2 + 1, 2 + 2]
    # The forwards beside the laps are not the update's.
    assert clock.seconds == {"update": 1 + 2 + 3 + 4, "beside": 5 * 7}
    assert [lap.forward for lap in laps.laps] == [7] * 4


def test_a_forward_is_the_mean_of_those_on_either_side(wall: Clock) -> None:
    clock, slow = Stopwatch(), iter([0, 4, 0])

    with Laps(clock, lambda: wall.take(next(slow)), torch.device("cpu")) as laps:
        laps.watched(lambda steps, z: z)([0], torch.ones(1))
    assert [lap.forward for lap in laps.laps] == [2, 2]


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
