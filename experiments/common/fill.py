"""What is missing of a table: measure it, append it, a unit at a time, together with whoever else does.

Several processes (or GPUs) that were started with the same command share a folder and split its units: a unit
is claimed by a lock that ends with its process, so what a killed one had in hand another takes up.
`repro.results` makes the bytes the same as one process's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from repro.console import note, progress
from repro.distributed.ranks import ALONE, Ranks
from repro.results import lock

Unit = TypeVar("Unit")
Advance = Callable[..., None]


def fill(
    description: str,
    units: Sequence[Unit],
    *,
    folder: Path,
    name: Callable[[Unit], str],
    done: Callable[[Unit], bool],
    measure: Callable[[Unit, Advance], None],
    size: Callable[[Unit], int] = lambda unit: 1,
    ranks: Ranks = ALONE,
) -> int:
    """Measure the units that are not done, in their order; returns how many are left to other processes.

    Args:
        description: of the progress bar.
        units: all there are.
        folder: of the table.
        name: of a unit, which no other has.
        done: whether a unit's rows are in the table; rank 0 is asked.
        measure: measures a unit and appends its rows; it calls ``advance(n, note=...)``, `size` in all.
        size: of a unit, in the bar's steps.
        ranks: which share each unit.
    """
    left = [unit for unit in units if not ranks.on_main(done, unit)]
    total = sum(map(size, units))
    with progress(description, total, total - sum(map(size, left))) as advance:
        while left:
            busy = []
            for unit in left:
                with _claimed(folder, name(unit), ranks) as mine:
                    if not mine:
                        busy.append(unit)
                    elif ranks.on_main(done, unit):  # by another process, since we looked
                        advance(size(unit))
                    else:
                        measure(unit, advance)
            if len(busy) == len(left):
                break
            left = busy
    if left:
        note(f"{description}: {len(left)} of {len(units)} are in the hands of other processes")
    return len(left)


@contextmanager
def _claimed(folder: Path, name: str, ranks: Ranks) -> Iterator[bool]:
    """Whether this process (or the ranks together) has the unit, for as long as the context lasts."""
    claim = lock(folder, re.sub(r"[^\w.-]+", "-", name), wait=False)
    mine = ranks.on_main(claim.__enter__)
    try:
        yield mine
    finally:
        ranks.on_main(claim.__exit__, None, None, None)
