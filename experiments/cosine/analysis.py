"""The cosine table read back: estimates with their intervals, and what they say of the reported cosines.

Everything is computed from the CSV alone. Intervals are 95 %: for a batch the delete-a-block jackknife over
its prompts, for prompts and single images Student's t over their mean.
"""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments import paper
from experiments.common.findings import Finding, Judgement
from repro import zoo
from repro.core.schemes.registry import LABELS
from repro.errors import InputError
from repro.results import read

JAGG = "jagg-time"
OWN = "endpoints-own"
SCHEMES = {JAGG: LABELS["jagg"]} | {
    name: label for name, label in LABELS.items() if name.startswith(("jagg-", "endpoints-"))
}
"""The table's schemes with their labels."""
SMOOTH = (
    "A model of a few million parameters is expected to be smoother along its trajectory than FLUX: "
    "a higher cosine here does not contradict the reported one."
)


class Estimate(NamedTuple):
    """A value and half the width of its 95 % interval (nan where there is none)."""

    value: float
    half: float


class Direction(StrEnum):
    """Of a difference, beyond its interval."""

    FALLS = "falls"
    RISES = "rises"
    NEITHER = "neither falls nor rises beyond its interval"


def load(csv: Path) -> pd.DataFrame:
    """The table.

    Raises:
        InputError: the CSV is another table.
    """
    table = read(csv)
    if missing := {"variant", "scheme", "unit", "cosine"} - set(table.columns):
        raise InputError(f"{csv} is no cosine table (it has no column {min(missing)}): name one")
    return table


def batch_estimate(rows: pd.DataFrame, column: str) -> Estimate:
    """The whole batch's value with the jackknife's interval; ``rows`` of one variant, group and scheme."""
    value = float(rows.loc[rows.unit == "batch", column].iloc[0])
    return Estimate(value, jackknife(rows.loc[rows.unit == "batch-without", column].to_numpy(float)))


def mean_estimate(rows: pd.DataFrame, column: str, unit: str) -> Estimate:
    """The mean over prompts or single images with Student's interval; undefined values are left out."""
    chosen = rows.loc[rows.unit == unit]
    # One value a prompt: its images share prompt and initial noise.
    prompts = chosen.unit_id.astype(str).str.split(".").str[0]
    values = chosen.groupby(prompts)[column].mean().dropna().to_numpy(float)
    if len(values) < 2:
        return Estimate(float(values.mean()) if len(values) else math.nan, math.nan)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return Estimate(float(values.mean()), float(half))


def jackknife(replicates: np.ndarray) -> float:
    """Half the width of the 95 % interval of a value of which these leave out one prompt each."""
    n = len(replicates)
    if n < 2 or not np.isfinite(replicates).all():
        return math.nan
    spread = (n - 1) / n * np.square(replicates - replicates.mean()).sum()
    return float(stats.t.ppf(0.975, n - 1) * math.sqrt(spread))


def trend(table: pd.DataFrame, scheme: str = JAGG, column: str = "cosine") -> Estimate:
    """Last group's batch cosine minus the first group's, with the jackknife's interval of the difference."""
    wide = table[(table.scheme == scheme) & table.unit.isin(["batch", "batch-without"])]
    wide = wide.pivot(index=["unit", "unit_id"], columns="group", values=column)
    difference = wide[wide.columns[-1]] - wide[wide.columns[0]]
    return Estimate(
        float(difference["batch"].iloc[0]), jackknife(difference["batch-without"].to_numpy(float))
    )


def direction(difference: Estimate) -> Direction:
    """Whether a cosine falls or rises; without an interval neither can be said."""
    if math.isnan(difference.half) or abs(difference.value) <= difference.half:
        return Direction.NEITHER
    return Direction.FALLS if difference.value < 0 else Direction.RISES


def comparable(base: pd.DataFrame) -> bool:
    """Whether the groups are those that cosines are reported of: 5 of 4 steps, under shift 3."""
    return set(base.steps) == {4} and set(base["shift"]) == {3.0} and base.group.nunique() == 5


def is_small(model: str) -> bool:
    """Whether it is a bundled one, smoother than those of the paper."""
    return model.startswith(zoo.MODELS)


def findings(csv: Path) -> dict[str, Finding]:
    """Level and trend of JAGG's batch cosine; judged only on the groups that cosines are reported of."""
    table = load(csv)
    base = table[table.variant == "base"]
    if base.empty:
        return {}
    jagg = base[base.scheme == JAGG]
    early = jagg[jagg.group.isin(paper.COSINE_GROUPS)]
    level = [batch_estimate(at, "cosine") for _, at in early.groupby("group")]
    change = trend(base)
    text, over = _range(level), f"{change.value:+.4f}"
    if not math.isnan(change.half):
        over += f" ({change.value - change.half:+.4f} … {change.value + change.half:+.4f})"
    if not comparable(base):
        return {"level": Finding(text), "trend": Finding(over)}
    found = direction(change)
    judgement = {
        Direction.FALLS: Judgement.AGREES,
        Direction.RISES: Judgement.DISAGREES,
        Direction.NEITHER: Judgement.UNDECIDED,
    }[found]
    why = "" if found is Direction.FALLS else f"From the first to the last group the batch's cosine {found}."
    return {"level": _level(text, level, base.model.iloc[0]), "trend": Finding(over, judgement, why)}


def _level(text: str, level: list[Estimate], model: str) -> Finding:
    low, high = paper.COSINE_EARLY_GROUPS.low, paper.COSINE_EARLY_GROUPS.high
    values = [estimate.value for estimate in level]
    if low <= min(values) and max(values) <= high:
        return Finding(text, Judgement.AGREES)
    if is_small(model) and min(values) > high:
        return Finding(text, Judgement.NOT_CONTRADICTED, SMOOTH)
    return Finding(text, Judgement.DISAGREES, f"Not all groups lie within {low:g} … {high:g}.")


def _range(level: list[Estimate]) -> str:
    """From the least to the greatest group's value."""
    values = [estimate.value for estimate in level]
    return f"{min(values):.4f} … {max(values):.4f}"
