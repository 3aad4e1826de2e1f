"""Laps of an update: all of its time, cut at the network's calls, and the sum of the fastest."""

from __future__ import annotations

import time

import pandas as pd
import pytest
import torch

from experiments.laps import MOST, Laps, undisturbed


def calls(laps: Laps, count: int, seconds: float = 0.0) -> None:
    watched = laps.watched(lambda steps, z: 2 * z)
    with laps:
        time.sleep(seconds)
        for step in range(count):
            assert torch.equal(watched([step], torch.ones(1)), torch.full((1,), 2.0))
            time.sleep(seconds)


def test_laps_begin_at_calls_and_are_all_of_the_time() -> None:
    laps = Laps(torch.device("cpu"))
    start = time.perf_counter()
    calls(laps, 3, seconds=0.01)
    took = time.perf_counter() - start
    assert len(laps.seconds) == 4
    assert min(laps.seconds) >= 0.01 and sum(laps.seconds) <= took


def test_many_laps_are_put_together() -> None:
    laps = Laps(torch.device("cpu"))
    calls(laps, 100)
    assert len(laps.seconds) == MOST and all(s > 0 for s in laps.seconds)


def test_a_queue_is_not_cut() -> None:
    laps = Laps(torch.device("cuda"))
    calls(laps, 3)
    assert len(laps.seconds) == 1


def test_undisturbed_takes_every_lap_from_its_fastest_round() -> None:
    rows = pd.DataFrame(
        [
            ("exact", 0, 0, 1.0),
            ("exact", 0, 1, 9.0),
            ("exact", 1, 0, 5.0),
            ("exact", 1, 1, 2.0),
            ("jagg", 0, 0, 4.0),
        ],
        columns=["scheme", "round", "lap", "seconds"],
    )
    assert undisturbed(rows, ["scheme"]).to_dict() == {"exact": pytest.approx(3.0), "jagg": 4.0}
