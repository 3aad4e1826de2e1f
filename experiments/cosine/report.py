"""The cosine table read back: intervals, and the printed comparison with the paper.

Everything is computed from the CSV alone. Intervals are 95 %: for a batch the delete-a-block jackknife over
its prompts, for prompts and single images Student's t over their mean.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments import paper
from experiments.common.markdown import table as markdown_table
from repro import zoo
from repro.console import print_table
from repro.results import read

JAGG = "jagg-time"
SMOOTH = (
    "A model of a few million parameters is expected to be smoother along its trajectory than FLUX: "
    "a higher cosine here does not contradict the reported one."
)


class Estimate(NamedTuple):
    """A value and half the width of its 95 % interval (nan where there is none)."""

    value: float
    half: float


def batch_estimate(rows: pd.DataFrame, column: str) -> Estimate:
    """The whole batch's value with the jackknife's interval; ``rows`` of one variant, group and scheme."""
    value = float(rows.loc[rows.unit == "batch", column].iloc[0])
    return Estimate(value, _jackknife(rows.loc[rows.unit == "batch-without", column].to_numpy(float)))


def mean_estimate(rows: pd.DataFrame, column: str, unit: str) -> Estimate:
    """The mean over prompts or single images with Student's interval; undefined values are left out."""
    chosen = rows.loc[rows.unit == unit]
    # One value a prompt: its images share prompt and initial noise.
    values = chosen.groupby(chosen.unit_id.str.split(".").str[0])[column].mean().dropna().to_numpy(float)
    if len(values) < 2:
        return Estimate(float(values.mean()) if len(values) else math.nan, math.nan)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return Estimate(float(values.mean()), float(half))


def _jackknife(replicates: np.ndarray) -> float:
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
        float(difference["batch"].iloc[0]), _jackknife(difference["batch-without"].to_numpy(float))
    )


def trend_sentence(table: pd.DataFrame) -> str:
    """Whether the cosine falls over the groups, in a sentence."""
    value, half = trend(table)
    if math.isnan(half) or abs(value) <= half:
        verb = "neither falls nor rises beyond its interval"
    else:
        verb = "falls" if value < 0 else "rises"
    return (
        f"From the first to the last group the batch's cosine {verb}: {value:+.4f} "
        f"(95 % interval ±{half:.4f}); reported: it {paper.COSINE_TREND.text}."
    )


HEADINGS = (
    "group",
    "sigma",
    "reported",
    "batch",
    "batch, middles",
    "one prompt",
    "one image",
    "endpoints only",
)


def reported(group: int) -> str:
    """What the paper's summary says of a group."""
    low, high = paper.COSINE_EARLY_GROUPS.low, paper.COSINE_EARLY_GROUPS.high
    return f"{low:g} … {high:g}" if group in paper.COSINE_GROUPS else "lower"


def summary(base: pd.DataFrame) -> list[tuple[str, ...]]:
    """A row per group under :data:`HEADINGS`, reported beside measured; ``base`` holds the base variant."""
    rows: list[tuple[str, ...]] = []
    # What is reported belongs to groups of 4 of 20 steps under shift 3.
    comparable = set(base.steps) == {4} and set(base["shift"]) == {3.0} and base.group.nunique() == 5
    for group, at in base.groupby("group"):
        jagg, own = at[at.scheme == JAGG], at[at.scheme == "endpoints-own"]
        rows.append(
            (
                str(group),
                f"{jagg.sigma_first.iloc[0]:.3f} → {jagg.sigma_last.iloc[0]:.3f}",
                reported(group) if comparable else "-",
                _text(batch_estimate(jagg, "cosine")),
                _text(batch_estimate(jagg, "middle_cosine")),
                _text(mean_estimate(jagg, "cosine", "prompt")),
                _text(mean_estimate(jagg, "cosine", "sample")),
                _text(batch_estimate(own, "cosine")),
            )
        )
    return rows


def findings(base: pd.DataFrame) -> str:
    """What the base variant shows besides the trend, in sentences."""

    def batch(scheme: str) -> pd.Series:
        return base[(base.scheme == scheme) & (base.unit == "batch")].set_index("group")["cosine"]

    single = base[(base.scheme == JAGG) & (base.unit == "sample")].groupby("group")["cosine"].mean()
    own, half, jagg = batch("endpoints-own"), batch("endpoints-half"), batch(JAGG)
    parts = []
    if len(single):
        parts.append(
            f"For single images it is highest in group {single.idxmax()} ({single.max():.4f}) and lowest in "
            f"group {single.idxmin()} ({single.min():.4f})."
        )
    parts.append(f"Endpoints alone reach {own.min():.2f} to {own.max():.2f}.")
    times = (1 - half.mean()) / (1 - jagg.mean())
    parts.append(
        "Half of every middle step's signal to either end, without interpolation, loses "
        f"{times:.1f} times what interpolating does (1 - cosine, mean over groups)."
    )
    return " ".join(parts)


def caveats(model: str) -> list[str]:
    """What must stand beside the reported number wherever this model's is shown."""
    return [SMOOTH] if model.startswith(zoo.MODELS) else []


def show(csv: Path) -> None:
    """Print reported beside measured, for the base variant."""
    table = read(csv)
    base = table[table.variant == "base"]
    if base.empty:
        return
    model = base.model.iloc[0]
    print_table(
        f"Cosine with the exact gradient, per group, on {model} (t-weighted JAGG; ± is a 95 % interval)",
        HEADINGS,
        summary(base),
        " ".join([trend_sentence(base), *caveats(model)]),
    )


def markdown(csv: Path) -> str:
    """The same as Markdown, for README and report."""
    table = read(csv)
    base = table[table.variant == "base"]
    images = base[base.unit == "batch"].images.iloc[0]
    prompts = base[base.unit == "prompt"].unit_id.nunique()
    lines = [
        f"**{base.model.iloc[0]}**, {images} images of {prompts} prompts:",
        "",
        markdown_table(HEADINGS, summary(base)),
        "",
        " ".join([trend_sentence(base), findings(base)]),
    ]
    even = table[table.variant == "equal-span"]
    if len(even):
        value, half = trend(even)
        lines[-1] += (
            f" Over {even.group.nunique()} groups of equal sigma span this difference is {value:+.4f} "
            f"(±{half:.4f})."
        )
    return "\n".join(lines)


def _text(estimate: Estimate) -> str:
    if math.isnan(estimate.value):
        return "-"
    return f"{estimate.value:.4f}" + ("" if math.isnan(estimate.half) else f"±{estimate.half:.4f}")
