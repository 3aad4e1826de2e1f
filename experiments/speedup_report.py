"""The wall-clock table read back: medians with intervals, the printed comparison, and the figure.

Everything is computed from the CSV alone. Schemes are compared within a round, where they ran one after the
other: a reduction is the median over rounds of 1 - scheme / exact. Intervals are those of a median, from
order statistics: the narrowest that covers 95 %, or with fewer than 6 rounds the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments import paper
from experiments.cells import ALGORITHMS
from experiments.markdown import table as markdown_table
from experiments.speedup_step import PHASES
from repro.console import print_table
from repro.results import read

SETTING = (
    "algorithm",
    "checkpointing",
    "weights",
    "group_size",
    "batch",
    "anchor_chunk",
    "velocities",
)
REST = [f"{phase}_s" for phase in PHASES if phase != "update"]
OVERHEAD_LIMIT = 0.03
"""A cell whose core takes a larger share of its update than this is marked: its forwards are too short."""
AGREEMENT = 0.05
"""How far measured and predicted ratios may be apart."""
ROUTED = f"routed-{paper.JAGG_FRAC.low:g}"
PAPER_MODE = (True, "full", "recompute")
"""Checkpointing, weights and velocities, as reported or in the early code."""
REPORTED = {
    ("dance_grpo", ROUTED): ("step", paper.STEP_REDUCTION),
    ("flow_grpo_fast", "jagg-time"): ("update", paper.UPDATE_REDUCTION_FAST),
}


class Median(NamedTuple):
    """A median and the ends of its interval."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        """A share in percent, with the distance to the further end of its interval, such as "17.8 ± 0.6"."""
        return f"{100 * self.value:.1f} ± {100 * max(self.high - self.value, self.value - self.low):.1f}"


def median(values: Sequence[float] | pd.Series) -> Median:
    """The median of one or more values, with the interval of the module's docstring."""
    x = np.sort(np.asarray(values, dtype=float))
    n = len(x)
    # x[k], x[n-1-k] cover the true median unless at most k of n fall on one side of it.
    covering = [k for k in range(n // 2) if 1 - 2 * stats.binom.cdf(k, n, 0.5) >= 0.95]
    k = max(covering, default=0)
    return Median(float(np.median(x)), float(x[k]), float(x[n - 1 - k]))


class Cell(NamedTuple):
    """One scheme in one setting, against the exact gradient of the same setting.

    Attributes:
        setting: the values of `SETTING`.
        scheme: its name.
        seconds: median of each phase.
        step, update: shares saved of the whole step and of the update.
        predicted_step, predicted_update: the same by the cost model, the other phases as measured.
        backward: b.
        overhead: share of the core's own work in the update.
        memory: peak, bytes, nan where unknown.
    """

    setting: tuple
    scheme: str
    seconds: dict[str, float]
    step: Median
    update: Median
    predicted_step: float
    predicted_update: float
    backward: float
    overhead: float
    memory: float

    @property
    def error(self) -> float:
        """Measured over predicted ratio of the updates, minus 1."""
        return (1 - self.update.value) / (1 - self.predicted_update) - 1

    def of(self, column: str):
        """The setting's value of a column."""
        return self.setting[SETTING.index(column)]

    def __str__(self) -> str:
        words = [f"W {self.of('group_size')}", f"batch {self.of('batch')}"]
        words += [] if self.of("anchor_chunk") == 2 else [f"chunk {self.of('anchor_chunk')}"]
        words += ["checkpointing" if self.of("checkpointing") else "no checkpointing"]
        words += ["LoRA"] if self.of("weights") == "lora" else []
        words += ["rollout's velocities"] if self.of("velocities") == "rollout" else []
        return ", ".join(words)


def cells(table: pd.DataFrame) -> list[Cell]:
    """Every setting's schemes in the order of the table, exact first."""
    found = []
    for setting, rows in table.groupby(list(SETTING), sort=False):
        exact = rows[rows.scheme == "exact"].set_index("round")
        rest_exact = exact[REST].sum(axis=1)
        for scheme, own in rows.groupby("scheme", sort=False):
            own = own.set_index("round")
            rest = own[REST].sum(axis=1)
            step = (rest + own.update_s) / (rest_exact + exact.update_s)
            predicted = (rest + own.predicted_update_s) / (rest_exact + exact.predicted_update_s)
            found.append(
                Cell(
                    setting=tuple(setting),
                    scheme=str(scheme),
                    seconds={phase: float(own[f"{phase}_s"].median()) for phase in PHASES},
                    step=median(1 - step),
                    update=median(1 - own.update_s / exact.update_s),
                    predicted_step=float((1 - predicted).median()),
                    predicted_update=float((1 - own.predicted_update_s / exact.predicted_update_s).median()),
                    backward=float(own.backward_factor.median()),
                    overhead=max(float((r.overhead_s / r.update_s).median()) for r in (own, exact)),
                    memory=float(own.peak_memory.median()),
                )
            )
    return found


def is_base(cell: Cell, table: pd.DataFrame) -> bool:
    """Whether the cell has the paper's W and chunks and the largest batch, and so is no cell of a sweep."""
    return (cell.of("group_size"), cell.of("anchor_chunk"), cell.of("batch")) == (
        int(paper.GROUP_SIZE.low),
        2,
        table.batch.max(),
    )


def verdict(found: list[Cell]) -> str:
    """How well the cost model did, in a few sentences, and how far the clock is to be trusted."""
    compared = [c for c in found if c.scheme != "exact"]
    clear = [c for c in compared if c.overhead <= OVERHEAD_LIMIT]
    close = [c for c in clear if abs(c.error) <= AGREEMENT]
    covered = [c for c in clear if c not in close and c.update.low <= c.predicted_update <= c.update.high]
    backwards, overheads = [c.backward for c in found], [c.overhead for c in found]
    marked = len(compared) - len(clear)
    parts = [
        f"Measured and predicted update ratios agree within {100 * AGREEMENT:.0f} % in {len(close)} of "
        f"{len(clear)} cells"
        + (f"; in {len(covered)} more the interval has the prediction" if covered else "")
        + (
            f"; {marked} more, marked *, {'is' if marked == 1 else 'are'} dominated by overhead"
            if marked
            else ""
        )
        + "."
    ]
    # Which is pure noise: the same passes, in the same round.
    if same := [100 * c.update.value for c in compared if c.predicted_update == 0]:
        parts.append(
            f"Where a scheme makes exact's very passes, its updates were timed {min(same):+.0f} … "
            f"{max(same):+.0f} % shorter: so far the clock errs."
        )
    parts.append(
        f"b, measured: {min(backwards):.2f} … {max(backwards):.2f}. The core's own work is "
        f"{100 * min(overheads):.1f} … {100 * max(overheads):.1f} % of the update."
    )
    return " ".join(parts)


def show(csv: Path) -> None:
    """Print reported beside measured beside predicted, for the settings that are not part of a sweep."""
    table = read(csv)
    found = cells(table)
    first = table.iloc[0]
    for _, group in groupby((c for c in found if is_base(c, table)), key=lambda c: c.setting):
        shown = list(group)
        print_table(
            f"Seconds per step of {first['samples']} images: {first['model']}, {shown[0].of('algorithm')}, "
            f"{shown[0]}; {first['device']}, {first['dtype']}",
            (
                "scheme",
                "step s",
                "update s",
                "% off update",
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
        f"{100 * cell.predicted_update:.1f}",
        cell.step.percent(),
        f"{100 * cell.predicted_step:.1f}",
    )
    return (
        cell.scheme + ("*" if cell.overhead > OVERHEAD_LIMIT else ""),
        sum(cell.seconds.values()),
        cell.seconds["update"],
        *(saved if cell.scheme != "exact" else ["-"] * len(saved)),
        f"{kind} {reported.low:g} … {reported.high:g}" if reported else "-",
        "-" if np.isnan(cell.memory) else f"{cell.memory / 2**30:.2f}",
    )


def shown(found: list[Cell], table: pd.DataFrame) -> list[list[Cell]]:
    """Every algorithm's base setting, in the paper's mode if that was timed, without the jagg_frac sweep."""
    kept: list[list[Cell]] = []
    for algorithm in ALGORITHMS:
        base = [c for c in found if is_base(c, table) and c.of("algorithm") == algorithm]
        modes = [list(group) for _, group in groupby(base, key=lambda c: c.setting)]
        paper_first = sorted(modes, key=lambda cells: _mode(cells[0]) != PAPER_MODE)
        for cells_ in paper_first[:1]:
            kept.append([c for c in cells_ if not c.scheme.startswith("routed") or c.scheme == ROUTED])
    return kept


def _mode(cell: Cell) -> tuple:
    return tuple(cell.of(column) for column in ("checkpointing", "weights", "velocities"))


def markdown(csv: Path) -> str:
    """The base settings as Markdown, for README: reported beside measured beside predicted."""
    table = read(csv)
    found, first = cells(table), table.iloc[0]
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


MARKDOWN_HEADINGS = ("scheme", "% off the update", "predicted", "% off the step", "predicted", "reported")


def _markdown_row(cell: Cell) -> tuple[str, ...]:
    kind, reported = REPORTED.get((cell.of("algorithm"), cell.scheme), (None, None))
    return (
        cell.scheme + (r"\*" if cell.overhead > OVERHEAD_LIMIT else ""),
        cell.update.percent(),
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
    value, low, high = (100 * share for share in (cell.step if kind == "step" else cell.update))
    predicted = 100 * (cell.predicted_step if kind == "step" else cell.predicted_update)
    where = "below" if high < reported.low else "above" if low > reported.high else "consistent with"
    if low <= 0 <= high:
        where = "too uncertain to be held against"
    return (
        f"{cell.scheme} takes {value:.1f} % off the {kind} here (interval {low:.1f} … {high:.1f}; predicted "
        f"{predicted:.1f}), {where} the {reported.low:g} … {reported.high:g} % reported."
    )


def plot(csv: Path) -> Path:
    """Redraw ``speedup.png`` beside the CSV."""
    from experiments.speedup_figure import draw

    return draw(csv)
