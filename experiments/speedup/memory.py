"""How much memory a piece of work takes at most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """Yields a list that holds, afterwards, the most bytes in use within the context, if that can be told.

    On a GPU what torch had allocated on it; on a CPU the process's resident memory, all libraries included.
    """
    found: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        found.append(torch.cuda.max_memory_allocated(device))
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    except OSError:
        yield found
        return
    yield found
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            found.append(int(line.split()[1]) * 1024)
