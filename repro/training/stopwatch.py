"""Seconds per phase of a training step, on the CPU's clock, the device's queue emptied at every boundary."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the seconds of phases; one that starts inside another pauses it.

    Args:
        device: whose queued work belongs to the phase that queued it.

    Attributes:
        seconds: per phase, so far.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.seconds: dict[str, float] = {}
        self._device = torch.device(device)
        self._running: list[str] = []
        self._since = 0.0

    def _lap(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._running:
            phase = self._running[-1]
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time within this context towards `phase`."""
        self._lap()
        self._running.append(phase)
        try:
            yield
        finally:
            self._lap()
            self._running.pop()
