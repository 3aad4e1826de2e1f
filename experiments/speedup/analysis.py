"""The wall-clock table read back: every scheme against the exact gradient of the same setting.

Two ways: in seconds, round by round, where the two ran one after the other, as the median over rounds of 1 -
scheme / exact; and in forwards timed beside every lap (`experiments.speedup.laps`), which is what the cost
model is held against, as it knows nothing of a machine whose speed changes. It knows nothing of what a call
of the network costs however few samples are in it, either: cells where that shows are not *clear*.

A median's interval is from order statistics: the narrowest that covers 95 %. Up to 8 rounds it is the range,
min … max, and with fewer than 6 that covers less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments import paper
from experiments.common.findings import Finding, Judgement
from experiments.speedup.config import FRACTIONS, NULL, Setting
from repro.core.cost import CostModel, Counts
from repro.core.schemes.registry import LABELS
from repro.errors import InputError
from repro.results import read
from repro.training.metrics import PHASES
from repro.training.recipe import Algorithm

SETTING = (
    "algorithm",
    "checkpointing",
    "weights",
    "group_size",
    "batch",
    "anchor_chunk",
    "velocities",
)
"""Columns that make a setting."""
REST = [f"{phase}_s" for phase in PHASES if phase != "update"]
LEVEL = 0.95
OVERHEAD_LIMIT = 0.03
"""A cell whose update has a larger share of what the cost model leaves out is not clear: its forwards are too
short."""
AGREEMENT = 0.05
"""How far measured and predicted ratios may be apart."""

EXACT, JAGG = "exact", "jagg-time"
ROUTED = {f"routed-{fraction:g}": fraction for fraction in FRACTIONS}
"""JAGG on a share of the groups: jagg_frac by name."""
PAPERS_ROUTED = f"routed-{paper.JAGG_FRAC.low:g}"
NAMES = {
    EXACT: LABELS["exact"],
    NULL: "exact again",
    PAPERS_ROUTED: f"{LABELS['jagg']}, {paper.JAGG_FRAC.low:g} of the groups",
    JAGG: f"{LABELS['jagg']}, all groups",
    "endpoints-own": LABELS["endpoints-own"],
    "subset-12of20": f"{LABELS['exact']} on 12 of 20 steps",
}
"""Labels of the base settings' schemes, in the order that they are shown in."""
REPORTED: dict[tuple[str, str], tuple[str, paper.Quantity]] = {
    ("dance_grpo", PAPERS_ROUTED): ("step", paper.STEP_REDUCTION),
    ("flow_grpo_fast", JAGG): ("update", paper.UPDATE_REDUCTION_FAST),
}
"""Of an algorithm's scheme: what it takes time off, and how much was reported."""
_PAPERS = CostModel(backward=2.0, recompute=1.0)
PASSES_SAVED = 1 - _PAPERS.price(Counts(4, 2, 2)) / _PAPERS.price(Counts(4, 4, 4))
"""Of an update's passes, as the cost model has a group of 4 with checkpointing and b = 2."""
UNSAVED = 100 * PASSES_SAVED / paper.UPDATE_REDUCTION_FAST.high - 1
"""What else the reported update would have to contain, in units of exact's passes."""
WHY = {
    "step": "What a step spends outside the update differs with model and machine.",
    "update": f"By the cost model JAGG saves {100 * PASSES_SAVED:.1f} % of the passes, so the reported phase "
    "may contain more than passes, of which the paper's summary does not tell: what no scheme saves "
    f"(optimizer, advantages, communication), if it took {100 * UNSAVED:.0f} % as long as exact's passes, "
    f"would make it {paper.UPDATE_REDUCTION_FAST.high:g} %.",
}
"""Reasons of a disagreement."""


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
        """A share in per cent with its interval, such as "17.8 (17.2 … 18.4)"."""
        value, low, high = (100 * share for share in self)
        return f"{value:.1f} ({low:.1f} … {high:.1f})"


def left_out(n: int) -> int:
    """How many of n sorted values lie outside a median's interval, on either side."""
    # x[k], x[n-1-k] cover the true median unless at most k of n fall on one side of it.
    return max((k for k in range(n // 2) if coverage(n, k) >= LEVEL), default=0)


def coverage(n: int, k: int) -> float:
    """How often the (k+1)th lowest and (k+1)th highest of n values have the true median between them."""
    return float(1 - 2 * stats.binom.cdf(k, n, 0.5))


def median(values: Sequence[float] | pd.Series) -> Median:
    """The median of one or more values, with the interval of the module's docstring."""
    x = np.sort(np.asarray(values, dtype=float))
    k = left_out(len(x))
    return Median(float(np.median(x)), float(x[k]), float(x[len(x) - 1 - k]))


class Cell(NamedTuple):
    """One scheme in one setting, against the exact gradient of the same setting.

    Attributes:
        setting: what is equal for both.
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

    setting: Setting
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
        """Ratio of the updates, priced over predicted, minus 1."""
        return (1 - self.priced.value) / (1 - self.predicted_update) - 1

    @property
    def error_in_seconds(self) -> float:
        """The same of the ratio in seconds."""
        return (1 - self.update.value) / (1 - self.predicted_update) - 1

    @property
    def clear(self) -> bool:
        """Whether the update is the network's passes and little else, as the cost model has it."""
        return self.overhead + self.fewer_per_call <= OVERHEAD_LIMIT

    @property
    def label(self) -> str:
        """The scheme, in words."""
        return NAMES.get(self.scheme, self.scheme)

    def __str__(self) -> str:
        setting = self.setting
        words = [f"W {setting.group_size}", f"batch {setting.batch}"]
        words += [] if setting.anchor_chunk == Setting.anchor_chunk else [f"chunk {setting.anchor_chunk}"]
        words += ["checkpointing" if setting.checkpointing else "no checkpointing"]
        words += ["LoRA"] if setting.weights == "lora" else []
        words += ["rollout's velocities"] if setting.velocities == "rollout" else []
        return ", ".join(words)


def cells(csv: Path) -> list[Cell]:
    """Every setting's schemes in the order of the table, exact first.

    Raises:
        InputError: a table without its laps.
    """
    table = read(csv)
    if not laps_path(csv).exists():
        raise InputError(f"{csv} has no {laps_path(csv).name} beside it: measure both anew with --fresh")
    laps = read(laps_path(csv))
    price = prices(laps, [*SETTING, "scheme"])
    alone = laps[laps.scheme == EXACT].groupby([*SETTING, "round"]).forward_s.median()
    found = []
    for setting, rows in table.groupby(list(SETTING), sort=False):
        exact = rows[rows.scheme == EXACT].set_index("round")
        rest_exact = exact[REST].sum(axis=1)
        model = _cost_model(rows)
        for scheme in sorted(rows.scheme.unique(), key=_place):
            own = rows[rows.scheme == scheme].set_index("round")
            rest = own[REST].sum(axis=1)
            step = (rest + own.update_s) / (rest_exact + exact.update_s)
            own_price, exact_price = _price(model, own), _price(model, exact)
            unit = exact.parts * exact.forward_s
            predicted = (rest + own_price * unit) / (rest_exact + exact_price * unit)
            found.append(
                Cell(
                    setting=_setting(setting),
                    scheme=str(scheme),
                    seconds={phase: float(own[f"{phase}_s"].median()) for phase in PHASES},
                    step=median(1 - step),
                    update=median(1 - own.update_s / exact.update_s),
                    priced=median(1 - price[(*setting, scheme)] / price[(*setting, EXACT)]),
                    predicted_step=float((1 - predicted).median()),
                    predicted_update=1 - own_price / exact_price,
                    backward=model.backward,
                    overhead=max(float((r.overhead_s / r.update_s).median()) for r in (own, exact)),
                    fewer_per_call=_fewer_per_call(own, exact, alone[setting]),
                    memory=float(own.peak_memory.median()),
                )
            )
    return found


def _place(scheme: str) -> tuple[int, str]:
    """Of a scheme within its setting: those with a label first, in their order."""
    names = list(NAMES)
    return (names.index(scheme) if scheme in names else len(names), scheme)


def _setting(values: Sequence[Any]) -> Setting:
    """Of the columns `SETTING`, numpy's scalars among them."""
    plain = (value.item() if isinstance(value, np.generic) else value for value in values)
    return Setting(**dict(zip(SETTING, plain, strict=True)))


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


def algorithms(found: Sequence[Cell]) -> list[Algorithm]:
    """Those that were timed, in the order of the table."""
    return list(dict.fromkeys(cell.setting.algorithm for cell in found))


def base_setting(found: Sequence[Cell], algorithm: Algorithm) -> Setting:
    """The paper's setting at the largest batch that was timed or, without it, the first that was timed."""
    timed = [cell.setting for cell in found if cell.setting.algorithm == algorithm]
    papers = Setting(algorithm=algorithm, batch=max((s.batch for s in timed), default=Setting.batch))
    return papers if papers in timed or not timed else timed[0]


def is_papers(setting: Setting) -> bool:
    """Whether it is the one that numbers are reported of, whatever the recipe and the batch."""
    return replace(setting, algorithm=Setting.algorithm, batch=Setting.batch) == Setting()


def base(found: Sequence[Cell], algorithm: Algorithm) -> list[Cell]:
    """The cells of that setting, exact first, without the sweep over jagg_frac."""
    setting = base_setting(found, algorithm)
    return [cell for cell in found if cell.setting == setting and cell.scheme in NAMES]


def null_cells(found: Sequence[Cell]) -> list[Cell]:
    """What makes exact's very passes, so that whatever it seems to save is the clock's error.

    The null arm is made for it; JAGG on groups of two steps, or on none of the groups, are others.
    """
    return [cell for cell in found if cell.scheme != EXACT and cell.predicted_update == 0]


class Agreement(NamedTuple):
    """How the cost model's ratios of updates compare with those measured, of schemes with other passes.

    Attributes:
        clear: cells whose forwards are long enough, in forwards. close, close_in_seconds: those of them
            within `AGREEMENT`. covered: others, whose interval in seconds has the prediction.
        marked: cells whose forwards are too short.
    """

    clear: list[Cell]
    close: list[Cell]
    close_in_seconds: list[Cell]
    covered: list[Cell]
    marked: list[Cell]


def agreement(found: Sequence[Cell]) -> Agreement:
    """Of all cells of a table."""
    compared = [cell for cell in found if cell.predicted_update != 0]
    clear = [cell for cell in compared if cell.clear]
    in_seconds = [cell for cell in clear if abs(cell.error_in_seconds) <= AGREEMENT]
    others = [cell for cell in clear if cell not in in_seconds]
    return Agreement(
        clear=clear,
        close=[cell for cell in clear if abs(cell.error) <= AGREEMENT],
        close_in_seconds=in_seconds,
        covered=[cell for cell in others if cell.update.low <= cell.predicted_update <= cell.update.high],
        marked=[cell for cell in compared if not cell.clear],
    )


class Reduction(NamedTuple):
    """What a scheme takes off the step or the update beside what was reported of it, in per cent.

    Attributes:
        of: "step" or "update".
        measured: an update's in forwards, which a machine's changes of speed hardly move.
        predicted: by the cost model.
        reported: what the paper says.
    """

    of: str
    measured: Median
    predicted: float
    reported: paper.Quantity

    @property
    def judgement(self) -> Judgement:
        """Agrees if the median lies within what is reported, disagrees if the whole interval lies outside."""
        value, low, high = self.measured
        if low <= 0 <= high:
            return Judgement.UNDECIDED
        if self.reported.low <= value <= self.reported.high:
            return Judgement.AGREES
        apart = high < self.reported.low or low > self.reported.high
        return Judgement.DISAGREES if apart else Judgement.NOT_CONTRADICTED


def reduction(cell: Cell) -> Reduction | None:
    """Of a cell of which something was reported."""
    if (cell.setting.algorithm, cell.scheme) not in REPORTED or not is_papers(cell.setting):
        return None
    of, reported = REPORTED[(cell.setting.algorithm, cell.scheme)]
    measured, predicted = (
        (cell.step, cell.predicted_step) if of == "step" else (cell.priced, cell.predicted_update)
    )
    return Reduction(of, Median(*(100 * share for share in measured)), 100 * predicted, reported)


def findings(csv: Path) -> dict[str, Finding]:
    """What is taken off DanceGRPO's step and off Flow-GRPO-Fast's update, in the paper's setting."""
    return {found.of: finding(found) for found in reductions(cells(csv))}


def reductions(found: Sequence[Cell]) -> list[Reduction]:
    """Of all cells of which something was reported."""
    shown = [cell for algorithm in algorithms(found) for cell in base(found, algorithm)]
    return [beside for cell in shown if (beside := reduction(cell))]


def finding(found: Reduction) -> Finding:
    """In a few words, with the reason of a disagreement."""
    value, low, high = found.measured
    text = f"{value:.1f} % ({low:.1f} … {high:.1f}; cost model {found.predicted:.1f})"
    return Finding(text, found.judgement, WHY[found.of] if found.judgement is Judgement.DISAGREES else "")
