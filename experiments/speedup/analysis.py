"""The wall-clock table read back: every scheme against the exact gradient of the same setting.

Two ways: in seconds, round by round, where the two ran one after the other, as the median over rounds of 1 -
scheme / exact; and in forwards timed beside every lap (`experiments.speedup.laps`), which is what the cost
model is held against, as it knows nothing of a machine whose speed changes. It knows nothing of what a call
of the network costs however few samples are in it, either: cells where that shows are marked. A median's
interval is from order statistics: the narrowest that covers 95 %, or with fewer than 6 rounds the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments import paper
from repro.core.cost import CostModel, Counts
from repro.errors import InputError
from repro.results import read
from repro.training.metrics import PHASES

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
"""A cell whose update has a larger share of what the cost model leaves out is marked: its forwards are too
short."""
AGREEMENT = 0.05
"""How far measured and predicted ratios may be apart."""


def laps_path(csv: Path) -> Path:
    """``speedup.csv`` -> ``speedup-laps.csv.gz``: compressed, a row for every call."""
    return csv.with_name(f"{csv.stem}-laps.csv.gz")


def prices(laps: pd.DataFrame, by: Sequence[Any]) -> pd.Series:
    """Prices in forwards, by the columns `by` and round: the sum over laps of medians over repetitions.

    Args:
        laps: a row a lap, with columns ``round``, ``lap``, ``seconds`` and ``forward_s``.
        by: what else identifies an update.
    """
    in_forwards = laps.assign(price=laps.seconds / laps.forward_s)
    update = [*by, "round"]
    return in_forwards.groupby([*update, "lap"])["price"].median().groupby(update).sum()


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
        step, update: shares saved of the whole step and of the update, round by round.
        priced: share saved of the update's price in forwards, likewise.
        predicted_step, predicted_update: the same by the cost model, the other phases as measured.
        backward: b.
        overhead: share of the core's own work in the update.
        fewer_per_call: what calls with fewer anchors in them than exact's add to the backwards, as a share.
        memory: peak, bytes, nan where unknown.
    """

    setting: tuple
    scheme: str
    seconds: dict[str, float]
    step: Median
    update: Median
    priced: Median
    predicted_step: float
    predicted_update: float
    backward: float
    overhead: float
    fewer_per_call: float
    memory: float

    @property
    def error(self) -> float:
        """Priced over predicted ratio of the updates, minus 1."""
        return (1 - self.priced.value) / (1 - self.predicted_update) - 1

    @property
    def clear(self) -> bool:
        """Whether the update is the network's passes and little else, as the cost model has it."""
        return self.overhead + self.fewer_per_call <= OVERHEAD_LIMIT

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


def cells(csv: Path) -> list[Cell]:
    """Every setting's schemes in the order of the table, exact first.

    Raises:
        ValueError: a table without its laps.
    """
    table = read(csv)
    if not laps_path(csv).exists():
        raise InputError(f"{csv} has no {laps_path(csv).name} beside it: measure both anew with --fresh")
    laps = read(laps_path(csv))
    price = prices(laps, [*SETTING, "scheme"])
    alone = laps[laps.scheme == "exact"].groupby([*SETTING, "round"]).forward_s.median()
    found = []
    for setting, rows in table.groupby(list(SETTING), sort=False):
        exact = rows[rows.scheme == "exact"].set_index("round")
        rest_exact = exact[REST].sum(axis=1)
        model = _cost_model(rows)
        for scheme, own in rows.groupby("scheme", sort=False):
            own = own.set_index("round")
            rest = own[REST].sum(axis=1)
            step = (rest + own.update_s) / (rest_exact + exact.update_s)
            own_price, exact_price = _price(model, own), _price(model, exact)
            unit = exact.parts * exact.forward_s
            predicted = (rest + own_price * unit) / (rest_exact + exact_price * unit)
            found.append(
                Cell(
                    setting=tuple(setting),
                    scheme=str(scheme),
                    seconds={phase: float(own[f"{phase}_s"].median()) for phase in PHASES},
                    step=median(1 - step),
                    update=median(1 - own.update_s / exact.update_s),
                    priced=median(1 - price[(*setting, scheme)] / price[(*setting, "exact")]),
                    predicted_step=float((1 - predicted).median()),
                    predicted_update=1 - own_price / exact_price,
                    backward=model.backward,
                    overhead=max(float((r.overhead_s / r.update_s).median()) for r in (own, exact)),
                    fewer_per_call=_fewer_per_call(own, exact, alone[setting]),
                    memory=float(own.peak_memory.median()),
                )
            )
    return found


def _cost_model(rows: pd.DataFrame) -> CostModel:
    """Of one setting's rows."""
    return CostModel(float(rows.backward_factor.median()), float(rows.checkpointing.iloc[0]))


def _price(model: CostModel, rows: pd.DataFrame) -> float:
    first = rows.iloc[0]
    return model.price(Counts(int(first.forwards), int(first.recomputes), int(first.backwards)))


def _fewer_per_call(own: pd.DataFrame, exact: pd.DataFrame, alone: pd.Series) -> float:
    """How much dearer a backward is than exact's as calls hold fewer anchors, such as the last of 10 by 4.

    A call of m steps costs fixed + m * rest, which a forward of one step and one of m show; that backwards
    are alike is assumed.

    Args:
        own: a scheme's rows.
        exact: those of the exact gradient in the same setting.
        alone: seconds of a forward of one step, by round.
    """
    m = float(exact.anchor_chunk.iloc[0])
    if m == 1:
        return 0.0
    stacked = float((alone / exact.forward_s).median())  # both of a round, as the machine's speed changes
    fixed = max(0.0, stacked - 1) / (1 - 1 / m)  # in forwards of one step among m

    def per_anchor(rows: pd.DataFrame) -> float:
        return float(1 + fixed * (rows.backward_calls / rows.backwards - 1 / m).iloc[0])

    return max(0.0, per_anchor(own) / per_anchor(exact) - 1)


def is_base(cell: Cell, table: pd.DataFrame) -> bool:
    """Whether the cell has the paper's W and chunks and the largest batch, and so is no cell of a sweep."""
    return (cell.of("group_size"), cell.of("anchor_chunk"), cell.of("batch")) == (
        int(paper.GROUP_SIZE.low),
        2,
        table.batch.max(),
    )
