"""The table that ``pytest benchmarks --results FOLDER`` fills, a row a benchmark, and its section.

Seconds are pytest-benchmark's. Beside them, where a benchmark measures these, how many times as fast it is as
a plain loop over samples and steps, as DanceGRPO's trainer has it, and the core's own share of the update.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from experiments.common.markdown import counted
from repro.results import provenance_path, read

COLUMNS: dict[str, type] = {
    "model": str,
    "device": str,
    "batch": int,
    "benchmark": str,
    "rounds": int,
    "median_s": float,
    "min_s": float,
    "plain_loop_s": float,
    "times_as_fast": float,
    "core_share": float,
}
KEY = ("model", "device", "batch", "benchmark")

BARS = {"update-exact-chunk-2": 4.5, "update-jagg-paper": 7.0}
"""Times as fast as the plain loop, at least, on tiny-flux with 48 samples."""
CORE_SHARE = 0.03
"""Largest share of the core's own work in an update there."""
UPDATES = {
    "update-exact-chunk-1": "exact, step by step",
    "update-exact-chunk-2": "exact, 2 steps stacked",
    "update-exact-chunk-4": "exact, 4 steps stacked",
    "update-jagg-paper": "JAGG, the paper's layout",
    "update-jagg-chunk-1": "JAGG, anchor by anchor",
    "update-jagg-chunk-4": "JAGG, 4 anchors stacked",
    "update-jagg-rollout-velocities": "JAGG, rollout's velocities",
}
"""Labels of the updates."""
JAGG, EXACT_ALIKE = "update-jagg-paper", "update-exact-chunk-2"
"""Two updates that stack alike, both two steps at a time: what they differ by is the scheme's."""


def markdown(csv: Path) -> str:
    """How fast the update is beside a plain loop, and what the core itself takes of it."""
    table = read(csv).set_index("benchmark")
    updates = table[table.times_as_fast.notna()]
    told, first = json.loads(provenance_path(csv).read_text()), table.iloc[0]
    fast = ", ".join(
        f"{UPDATES[str(name)]} {ratio:.1f}{_bar(str(name))}" for name, ratio in updates.times_as_fast.items()
    )
    threads = counted(told["threads"], "thread")
    return (
        f"{first['model']} on {first['device']}, {threads}: an update of {first['batch']} samples without "
        "checkpointing is so many times as fast as a plain loop over samples and steps, which is how "
        f"DanceGRPO's trainer goes and which takes {updates.plain_loop_s.iloc[0]:.3g} s: {fast}."
        f"{_jaggs_part(updates.times_as_fast)}{_core(table)}"
    )


def jaggs_part(times_as_fast: pd.Series) -> float | None:
    """How many times as fast JAGG is as exact gradients batched alike; None where one was not timed."""
    if not {JAGG, EXACT_ALIKE} <= set(times_as_fast.index):
        return None
    return float(times_as_fast[JAGG] / times_as_fast[EXACT_ALIKE])


def _jaggs_part(times_as_fast: pd.Series) -> str:
    part = jaggs_part(times_as_fast)
    if part is None:
        return ""
    return (
        f" Of the {times_as_fast[JAGG]:.1f} a factor of {part:.1f} is JAGG itself, against exact gradients "
        f"that are batched alike. The other, {times_as_fast[EXACT_ALIKE]:.1f}, is mostly batching of samples "
        "and steps: a network of few tokens (tiny-flux has 16) gains more from it than a large one."
    )


def _bar(name: str) -> str:
    return f" (at least {BARS[name]:g} was asked for)" if name in BARS else ""


def _core(table: pd.DataFrame) -> str:
    share = table.core_share.dropna()
    if share.empty:
        return ""
    return (
        f" Everything in an update that is not the network takes {100 * share.iloc[0]:.1f} % of it (at most "
        f"{100 * CORE_SHARE:g} % was asked for)."
    )
