"""The wall-clock table in words: the printed comparison, README's, and what is said of the cost model."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import paper
from experiments.common.markdown import counted, listed
from experiments.common.markdown import table as markdown_table
from experiments.convergence.arms import ALGORITHMS
from experiments.speedup.analysis import AGREEMENT, Cell, cells, is_base
from repro.console import print_table
from repro.results import read

ROUTED = f"routed-{paper.JAGG_FRAC.low:g}"
PAPER_MODE = (True, "full", "recompute")
"""Checkpointing, weights and velocities, as reported or in the early code."""
REPORTED = {
    ("dance_grpo", ROUTED): ("step", paper.STEP_REDUCTION),
    ("flow_grpo_fast", "jagg-time"): ("update", paper.UPDATE_REDUCTION_FAST),
}


def verdict(found: list[Cell]) -> str:
    """How well the cost model did, in a few sentences, and how far the clock is to be trusted."""
    others = [c for c in found if c.scheme != "exact"]
    # Schemes that make exact's very passes show how far the clock errs, not how good the model is.
    compared = [c for c in others if c.predicted_update != 0]
    same = [c for c in others if c.predicted_update == 0]
    clear = [c for c in compared if c.clear]
    close = [c for c in clear if abs(c.error) <= AGREEMENT]
    parts = [
        f"Measured and predicted update ratios agree within {100 * AGREEMENT:.0f} % in {len(close)} of "
        f"{len(clear)} cells in forwards" + f", {_in_seconds(clear)}."
    ]
    if marked := [c for c in compared if not c.clear]:
        errors = "; ".join(f"{c.scheme}, {c}: {100 * c.error:+.1f} %" for c in marked)
        parts.append(
            f"{counted(len(marked), 'more cell')}, marked *, with forwards too short for that: {errors}."
        )
    if clear:
        furthest = max(clear, key=lambda c: abs(c.error))
        parts.append(
            f"Furthest apart in forwards: {100 * furthest.error:+.1f} % ({furthest.scheme}; {furthest})."
        )
    if same:
        seconds, forwards = [100 * c.update.value for c in same], [100 * c.priced.value for c in same]
        parts.append(
            f"Where a scheme makes exact's very passes, its updates came out {min(seconds):+.0f} … "
            f"{max(seconds):+.0f} % shorter in seconds, {min(forwards):+.1f} … {max(forwards):+.1f} % in "
            "forwards: so far the clock errs."
        )
    factors = []
    for weights, name in (("full", "all weights"), ("lora", "LoRA")):
        if values := [c.backward for c in found if c.of("weights") == weights]:
            factors.append(f"{min(values):.2f} … {max(values):.2f} with {name}")
    overheads = [c.overhead for c in found]
    parts.append(
        f"b, measured: {listed(factors)}. The core's own work is {100 * min(overheads):.1f} … "
        f"{100 * max(overheads):.1f} % of the update."
    )
    return " ".join(parts)


def _in_seconds(clear: list[Cell]) -> str:
    close = [c for c in clear if abs((1 - c.update.value) / (1 - c.predicted_update) - 1) <= AGREEMENT]
    covered = [c for c in clear if c not in close and c.update.low <= c.predicted_update <= c.update.high]
    return (
        f"in {len(close)} in seconds, whose interval has the prediction in {len(covered)} more"
        if covered
        else f"in {len(close)} in seconds"
    )


def show(csv: Path) -> None:
    """Print reported beside measured beside predicted, for the settings that are not part of a sweep."""
    table = read(csv)
    found = cells(csv)
    first = table.iloc[0]
    for _, group in groupby((c for c in found if is_base(c, table)), key=lambda c: c.setting):
        shown = list(group)
        print_table(
            f"Seconds per step of {first['samples']} images: {first['model']}, {shown[0].of('algorithm')}, "
            f"{shown[0]}; {first['device']}, {first['dtype']}",
            (
                "scheme",
                "step/update s",
                "% off update",
                "in forwards",
                "predicted",
                "% off step",
                "predicted",
                "reported %",
                "GiB",
            ),
            [_row(cell) for cell in shown],
        )
    print(f"Medians of {table['round'].nunique()} rounds, ± their interval. {verdict(found)}")


def _row(cell: Cell) -> tuple:
    kind, reported = REPORTED.get((cell.of("algorithm"), cell.scheme), (None, None))
    saved = (
        cell.update.percent(),
        cell.priced.percent(),
        f"{100 * cell.predicted_update:.1f}",
        cell.step.percent(),
        f"{100 * cell.predicted_step:.1f}",
    )
    return (
        cell.scheme + ("" if cell.clear else "*"),
        f"{sum(cell.seconds.values()):.3g}/{cell.seconds['update']:.3g}",
        *(saved if cell.scheme != "exact" else ["-"] * len(saved)),
        f"{kind} {reported.low:g}…{reported.high:g}" if reported else "-",
        "-" if np.isnan(cell.memory) else f"{cell.memory / 2**30:.2f}",
    )


def shown(found: list[Cell], table: pd.DataFrame) -> list[list[Cell]]:
    """Every algorithm's base setting, in the paper's mode if that was timed, without the jagg_frac sweep."""
    kept: list[list[Cell]] = []
    for algorithm in ALGORITHMS:
        base = [c for c in found if is_base(c, table) and c.of("algorithm") == algorithm]
        modes = [list(group) for _, group in groupby(base, key=lambda c: c.setting)]
        paper_first = sorted(modes, key=lambda cells: mode(cells[0]) != PAPER_MODE)
        for cells_ in paper_first[:1]:
            kept.append([c for c in cells_ if not c.scheme.startswith("routed") or c.scheme == ROUTED])
    return kept


def mode(cell: Cell) -> tuple:
    """Checkpointing, weights and velocities."""
    return tuple(cell.of(column) for column in ("checkpointing", "weights", "velocities"))


def markdown(csv: Path) -> str:
    """The base settings as Markdown, for README: reported beside measured beside predicted."""
    table = read(csv)
    found, first = cells(csv), table.iloc[0]
    parts = []
    for group in shown(found, table):
        exact = group[0]
        name, seconds = ALGORITHMS[exact.of("algorithm")], sum(exact.seconds.values())
        parts += [
            f"**{first['model']}, {name}** on {first['device']}, {first['dtype']}: {exact}. An exact step of "
            f"{first['samples']} images takes {seconds:.3g} s, {exact.seconds['update']:.3g} s of them the "
            "update.",
            markdown_table(MARKDOWN_HEADINGS, [_markdown_row(c) for c in group if c.scheme != "exact"]),
        ]
        parts += [sentence for c in group if (sentence := reported_sentence(c))]
    rounds, told = table["round"].nunique(), verdict(found).replace("*", r"\*")
    return "\n\n".join([*parts, f"Medians of {rounds} rounds, ± their interval. {told}"])


MARKDOWN_HEADINGS = (
    "scheme",
    "% off the update",
    "in forwards",
    "predicted",
    "% off the step",
    "predicted",
    "reported",
)


def _markdown_row(cell: Cell) -> tuple[str, ...]:
    kind, reported = REPORTED.get((cell.of("algorithm"), cell.scheme), (None, None))
    return (
        cell.scheme + ("" if cell.clear else r"\*"),
        cell.update.percent(),
        cell.priced.percent(),
        f"{100 * cell.predicted_update:.1f}",
        cell.step.percent(),
        f"{100 * cell.predicted_step:.1f}",
        f"{kind}: {reported.low:g} … {reported.high:g}" if reported else "-",
    )


def reported_sentence(cell: Cell) -> str:
    """Where a measured reduction lies against the reported one; empty where none was reported."""
    kind, reported = REPORTED.get((cell.of("algorithm"), cell.scheme), (None, None))
    if reported is None:
        return ""
    # An update can be held against it in forwards, which the machine's changes of speed hardly move.
    value, low, high = (100 * share for share in (cell.step if kind == "step" else cell.priced))
    predicted = 100 * (cell.predicted_step if kind == "step" else cell.predicted_update)
    unit = "" if kind == "step" else " in forwards"
    where = "below" if high < reported.low else "above" if low > reported.high else "consistent with"
    if low <= 0 <= high:
        where = "too uncertain to be held against"
    return (
        f"{cell.scheme} takes {value:.1f} % off the {kind} here{unit} (interval {low:.1f} … {high:.1f}; "
        f"predicted {predicted:.1f}), {where} the {reported.low:g} … {reported.high:g} % reported."
    )
