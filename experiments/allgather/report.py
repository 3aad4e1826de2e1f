"""What the all-gather table says, as Markdown; what surrounds it stands in `experiments.sections`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments import paper
from experiments.allgather.analysis import (
    REPORTED,
    changed_by_checkpointing,
    findings,
    in_backward,
    per_group,
)
from experiments.allgather.config import FSDP1, FSDP2, LAYOUTS, WRAPPERS
from experiments.common.markdown import table

HEADINGS = (
    "layout",
    "all-gathers, forward",
    f"all-gathers, backward, {FSDP1}",
    f"all-gathers, backward, {FSDP2}",
    "reported",
    "reduce-scatters",
    "held back to the last backward",
)


def markdown(csv: Path) -> str:
    """The counts layout by layout, and whether the joint backward makes one all-gather."""
    counts = per_group(csv)
    first = counts.iloc[0]
    rows = [
        (
            label,
            _both(counts.forward, layout),
            *(f"{in_backward(counts, layout, wrapper):g}" for wrapper in WRAPPERS),
            REPORTED.get(layout, "-"),
            _both(counts.scatters, layout),
            _both(counts.scatters, layout, held_back=True),
        )
        for layout, label in LAYOUTS.items()
    ]
    finding = findings(csv)["all-gathers"]
    return "\n\n".join(
        (
            f"Per transformer block and group of W = {first.group_size:g}, counted on {first.ranks:g} ranks, "
            f"{first.blocks:g} blocks, {first.groups:g} groups an update, without checkpointing; "
            f"{FSDP1} / {FSDP2} where they differ:",
            table(HEADINGS, rows),
            f"Reported of the joint backward: {paper.ALL_GATHERS.text}. Here: {finding}. {finding.why} "
            f"{_checkpointing(counts)}",
            f"Every gradient is a single process's to {counts.gradient_error.max():.0e} of its norm.",
        )
    )


def _both(counts: pd.Series, layout: str, held_back: bool = False) -> str:
    numbers = [f"{counts[(wrapper, layout, False, held_back)]:g}" for wrapper in WRAPPERS]
    return " / ".join(dict.fromkeys(numbers))


def _checkpointing(counts: pd.DataFrame) -> str:
    changed = [f"{LAYOUTS[layout]} ({wrapper})" for wrapper, layout in changed_by_checkpointing(counts)]
    if changed:
        return f"Checkpointing changes the counts of: {'; '.join(changed)}."
    return "Checkpointing changes none of the counts."
