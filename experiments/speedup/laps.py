"""What an update costs in forwards, on a machine whose speed changes while it runs.

On a shared machine everything is now and then a third slower, for some seconds at a time. So an update is cut
into laps at the network's calls, and before every lap and after the last one a forward without gradient of
one step is timed. A lap over the mean of the forwards on either side hardly depends on how fast the machine
is at that moment; the sum over laps is the update's *price* in forwards, which is what the cost model
predicts. That the two agree says that an update is these passes and little else, whatever a second is worth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from repro.core.gradient import VelocityFn
from repro.training.stopwatch import Stopwatch

ENOUGH = 1.0
"""Seconds: a shorter update is repeated within its round until it has run as long."""


class Lap(NamedTuple):
    """Seconds of a lap, and of a forward of one step of a part beside it."""

    seconds: float
    forward: float


class Laps:
    """Times the laps of one update (a context manager within which it runs).

    A device with a queue of its own, such as a GPU, is timed in a single lap: its calls return at once.

    Args:
        clock: of the step; the forwards beside the laps pause what it counts.
        beside: a forward without gradient of one step.
        device: where the network is.
    """

    def __init__(self, clock: Stopwatch, beside: Callable[[], None], device: torch.device) -> None:
        self._clock, self._beside, self._device = clock, beside, device
        self._cut = device.type == "cpu"
        self._forwards: list[float] = []
        self._laps: list[float] = []
        self._since = 0.0

    def __enter__(self) -> Laps:
        self._forward()
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:  # after a failure other ranks may not join in another forward
            self._lap()

    def watched(self, velocity: VelocityFn) -> VelocityFn:
        """`velocity`, every call of which begins a lap."""
        if not self._cut:
            return velocity

        def call(steps: Sequence[int], latents: Tensor) -> Tensor:
            self._lap()
            return velocity(steps, latents)

        return call

    def _lap(self) -> None:
        self._synchronize()
        self._laps.append(time.perf_counter() - self._since)
        self._forward()

    def _forward(self) -> None:
        with self._clock("beside"):
            self._synchronize()
            start = time.perf_counter()
            self._beside()
            self._synchronize()
            self._since = time.perf_counter()
            self._forwards.append(self._since - start)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @property
    def laps(self) -> list[Lap]:
        """In order; the first is what came before the first call."""
        sides = zip(self._forwards, self._forwards[1:], strict=False)
        forwards = [(before + after) / 2 for before, after in sides]
        return [Lap(*lap) for lap in zip(self._laps, forwards, strict=True)]
