"""What the all-gather table found: counts per block and group, and whether the joint backward makes one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.allgather.config import FSDP1, FSDP2, KEY
from experiments.common.findings import Finding, Judgement
from repro.results import read

REPORTED = {"exact": "W", "jagg-joint": "1"}
"""What the paper says of all-gathers in a group's backward."""
COUNTS = ("forward", "backward", "scatters")
WORDS = {1: "one", 2: "two", 3: "three", 4: "four"}


def per_group(csv: Path) -> pd.DataFrame:
    """The table indexed by its key, with `COUNTS`: collectives per block and group of steps."""
    table = read(csv)
    return table.assign(
        forward=table.all_gathers_forward / table.groups,
        backward=table.all_gathers_backward / table.groups,
        scatters=table.reduce_scatters_backward / table.groups,
    ).set_index(list(KEY))


def in_backward(counts: pd.DataFrame, layout: str, wrapper: str) -> float:
    """All-gathers per block in a group's backwards, with neither checkpointing nor held-back gradients."""
    return float(counts.backward[(wrapper, layout, False, False)])


def changed_by_checkpointing(counts: pd.DataFrame) -> list[tuple[str, str]]:
    """The (wrapper, layout) of which checkpointing changes a count."""
    on, off = (counts[list(COUNTS)].xs(value, level="checkpointing") for value in (True, False))
    return list(on.compare(off).index.droplevel("sync_held_back").unique())


def findings(csv: Path) -> dict[str, Finding]:
    """Whether the joint backward makes exactly one all-gather, judged on FSDP1, DanceGRPO's."""
    counts = per_group(csv)
    one, two = (in_backward(counts, "jagg-joint", wrapper) for wrapper in (FSDP1, FSDP2))
    stacked = {in_backward(counts, "jagg-stacked", wrapper) for wrapper in (FSDP1, FSDP2)}
    text = f"{FSDP1} {in_words(one)}, {FSDP2} {in_words(two)}"
    if one != two and len(stacked) == 1:
        text += f" unless the endpoints are stacked, which makes {in_words(stacked.pop())} on both"
    if one != 1:
        why = f"DanceGRPO's trainers use {FSDP1}, where the joint backward makes {in_words(one)}."
        return {"all-gathers": Finding(text, Judgement.DISAGREES, why)}
    why = f"DanceGRPO's trainers use {FSDP1}, which keeps a gathered block for all graphs of a backward."
    if two != 1:
        why += f" {FSDP2} gathers it anew for each graph."
    return {"all-gathers": Finding(text, Judgement.AGREES, why)}


def in_words(count: float) -> str:
    """ "one", "two"; a number that is not small or not whole as figures."""
    return WORDS.get(int(count), f"{count:g}") if count == int(count) else f"{count:g}"
