"""How long an update takes when nothing else does, on a machine that others use, too.

Whatever else runs on the machine only ever adds time, in bursts about as long as an update. So an update is
cut into laps at the network's calls; the same lap of every round is the same work, and the fastest of them
met least of the others'. The sum over laps of these is the *undisturbed* update, which a round as a whole
may never have been.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from repro.gradient import VelocityFn

MOST = 16
"""Laps of an update, at most: where there are more calls, neighbours count as one."""
ENOUGH = 2.0
"""Seconds: a shorter update is repeated within its round until it has run as long, so as to meet quiet."""


class Laps:
    """Times the laps of what runs within it (a context manager).

    A device with a queue of its own, such as a GPU, is timed in a single lap: its calls return at once.

    Args:
        device: that the network runs on; what is queued must be finished at entry and exit.
    """

    def __init__(self, device: torch.device) -> None:
        self._cut = device.type == "cpu"
        self._marks: list[float] = []

    def __enter__(self) -> Laps:
        self._marks = [time.perf_counter()]
        return self

    def __exit__(self, *exception: object) -> None:
        self._marks.append(time.perf_counter())

    def watched(self, velocity: VelocityFn) -> VelocityFn:
        """`velocity`, every call of which begins a lap."""
        if not self._cut:
            return velocity

        def call(steps: Sequence[int], latents: Tensor) -> Tensor:
            self._marks.append(time.perf_counter())
            return velocity(steps, latents)

        return call

    @property
    def seconds(self) -> list[float]:
        """Of each lap, in order; the first is what came before the first call."""
        laps = np.diff(self._marks)
        return [float(part.sum()) for part in np.array_split(laps, min(MOST, len(laps)))]


def laps_path(csv: Path) -> Path:
    """``speedup.csv`` -> ``speedup-laps.csv``."""
    return csv.with_name(f"{csv.stem}-laps.csv")


def undisturbed(laps: pd.DataFrame, by: Sequence[Any]) -> pd.Series:
    """Seconds of the undisturbed updates by the columns `by`, of rows with ``lap`` and ``seconds``."""
    return laps.groupby([*by, "lap"])["seconds"].min().groupby(list(by)).sum()
