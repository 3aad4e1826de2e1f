"""Every reported result beside what was measured here, a row each: README's first table.

The numbers are those of the sections below it, from the same CSVs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from experiments import paper
from experiments.ablation.figure import OUTCOME
from experiments.common.markdown import counted, signed, table
from experiments.convergence.analysis import at_main_rate
from experiments.convergence.arms import ALGORITHMS, ARMS
from experiments.convergence.evaluation import REWARD
from experiments.convergence.figure import BASELINE, LEARNED, learning
from experiments.cosine.report import JAGG, batch_estimate
from experiments.speedup.analysis import Cell, cells
from experiments.speedup.report import PAPER_MODE, ROUTED, mode
from repro import zoo
from repro.results import read

READINGS = {
    **{
        a: arm.label.removeprefix("endpoints: ") + ": "
        for a, arm in ARMS.items()
        if a.startswith("endpoints")
    },
    "subset-paper": "at its cost in the paper's layout: ",
}
"""What tells arms of one row apart."""
Measured = Callable[[Path, str], str]
"""What was measured on a model, from the folder of results; "-" where it was not."""


def markdown(results: Path) -> str:
    """The table, models side by side.

    Args:
        results: the folder that holds a folder for each model.
    """
    headings = ("", "reported, of FLUX and Qwen-Image", *zoo.MODELS)
    return table(
        headings,
        [
            (what, reported, *(measured(results, model) for model in zoo.MODELS))
            for what, reported, measured in ROWS
        ],
    )


def _step(results: Path, model: str) -> str:
    cell = _cell(results / model / "speedup.csv", "dance_grpo", ROUTED)
    return "-" if cell is None else f"{cell.step.percent()} % (cost model: {100 * cell.predicted_step:.1f})"


def _update(results: Path, model: str) -> str:
    cell = _cell(results / model / "speedup.csv", "flow_grpo_fast", "jagg-time")
    return (
        "-" if cell is None else f"{cell.update.percent()} % (cost model: {100 * cell.predicted_update:.1f})"
    )


def _cell(csv: Path, algorithm: str, scheme: str) -> Cell | None:
    """In the paper's mode, at the largest batch."""
    if not csv.exists():
        return None
    found = [
        c
        for c in cells(csv)
        if (c.of("algorithm"), c.scheme, mode(c)) == (algorithm, scheme, PAPER_MODE)
        and (c.of("group_size"), c.of("anchor_chunk")) == (int(paper.GROUP_SIZE.low), 2)
    ]
    return max(found, key=lambda c: c.of("batch"), default=None)


def _reward(algorithm: str, first: str, second: str) -> Measured:
    return lambda results, model: _contrasts(results / f"{model}-{algorithm}", first, second)


def _contrasts(folder: Path, first: str, second: str) -> str:
    """Of arms whose names begin with `first`, over the run, in the comfortable regime, at the same rate."""
    csv = folder / "ablation.csv"
    if not csv.exists():
        return "-"
    rows = read(csv)
    rows = rows[(rows.metric == REWARD) & (rows.outcome == OUTCOME) & (rows.rates == "same")]
    rows = rows[(rows.regime == "comfortable") & (rows["second"] == second)]
    rows = rows[rows["first"].str.startswith(first)]
    found = "; ".join(_contrast(row) for _, row in rows.iterrows())
    return found + (_unlearned(csv.with_name("ablation-efficiency.csv")) if found else "-")


def _unlearned(csv: Path) -> str:
    """What to add where the comfortable regime's exact baseline was not seen to learn."""
    runs = read(csv)[lambda rows: rows.regime == "comfortable"]
    rises = at_main_rate(runs)[lambda rows: rows.arm == BASELINE].rise
    return "" if learning(rises) >= LEARNED else "; the exact baseline did not visibly learn"


def _contrast(row: pd.Series) -> str:
    label = READINGS.get(row["first"], "")
    return f"{label}{signed(row.difference, row.half_interval)}, {row.verdict} ({counted(row.seeds, 'seed')})"


def _cosine(results: Path, model: str) -> str:
    csv = results / model / "cosine.csv"
    if not csv.exists():
        return "-"
    base = read(csv)[lambda rows: (rows.regime == "base") & (rows.scheme == JAGG)]
    found = [batch_estimate(at, "cosine") for _, at in base.groupby("group")]
    return ", ".join(f"{value:.4f}±{half:.4f}" for value, half in found)


ROWS: tuple[tuple[str, str, Measured], ...] = (
    (
        f"time off a DanceGRPO step, JAGG on {paper.JAGG_FRAC.low:g} of the groups",
        f"{paper.STEP_REDUCTION.low:g} … {paper.STEP_REDUCTION.high:g} %",
        _step,
    ),
    (
        "time off Flow-GRPO-Fast's update",
        f"{paper.UPDATE_REDUCTION_FAST.low:g} … {paper.UPDATE_REDUCTION_FAST.high:g} %",
        _update,
    ),
    *(
        (f"reward over the run, {what}, {name}", reported, _reward(algorithm, first, second))
        for what, reported, first, second in (
            ("JAGG minus exact", paper.QUALITY.text, "jagg", BASELINE),
            ("endpoints without interpolation minus JAGG", paper.ABLATION.text, "endpoints", "jagg"),
            ("exact on fewer steps at JAGG's cost minus JAGG", "-", "subset", "jagg"),
        )
        for algorithm, name in ALGORITHMS.items()
    ),
    (
        "cosine with the exact gradient, groups 0 … 4",
        f"{paper.COSINE_EARLY_GROUPS.low:g} … {paper.COSINE_EARLY_GROUPS.high:g} in groups 0 … 2; "
        f"{paper.COSINE_TREND.text}",
        _cosine,
    ),
)
"""What was reported, in which words or numbers, and where ours is."""
