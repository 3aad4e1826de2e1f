"""The cosine table's section of the report: reported beside measured, group by group."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from experiments import paper
from experiments.common.markdown import table as markdown_table
from experiments.cosine.analysis import (
    JAGG,
    OWN,
    SMOOTH,
    Estimate,
    batch_estimate,
    comparable,
    direction,
    is_small,
    load,
    mean_estimate,
    trend,
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


def markdown(csv: Path) -> str:
    """The base variant's groups, their trend, and what single images and endpoints alone reach."""
    table = load(csv)
    base = table[table.variant == "base"]
    if base.empty:
        return "The base variant was not measured."
    model, images = base.model.iloc[0], base[base.unit == "batch"].images.iloc[0]
    prompts = base[base.unit == "prompt"].unit_id.nunique()
    said = [_trend(base), *_units(base)]
    even = table[table.variant == "equal-span"]
    if len(even):
        said.append(f"Over {even.group.nunique()} groups of equal sigma span it is {_signed(trend(even))}.")
    said += [SMOOTH] if is_small(model) else []
    return "\n\n".join(
        (
            f"**{model}**, {images} images of {prompts} prompts; ± is half a 95 % interval:",
            markdown_table(HEADINGS, _rows(base)),
            " ".join(said),
        )
    )


def _rows(base: pd.DataFrame) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    low, high = paper.COSINE_EARLY_GROUPS.low, paper.COSINE_EARLY_GROUPS.high
    for group, at in base.groupby("group"):
        jagg, own = at[at.scheme == JAGG], at[at.scheme == OWN]
        reported = f"{low:g} … {high:g}" if group in paper.COSINE_GROUPS else "lower"
        rows.append(
            (
                str(group),
                f"{jagg.sigma_first.iloc[0]:.3f} → {jagg.sigma_last.iloc[0]:.3f}",
                reported if comparable(base) else "-",
                _text(batch_estimate(jagg, "cosine")),
                _text(batch_estimate(jagg, "middle_cosine")),
                _text(mean_estimate(jagg, "cosine", "prompt")),
                _text(mean_estimate(jagg, "cosine", "sample")),
                _text(batch_estimate(own, "cosine")),
            )
        )
    return rows


def _trend(base: pd.DataFrame) -> str:
    change = trend(base)
    return (
        f"From the first to the last group the batch's cosine {direction(change)}: {_signed(change)}; "
        f"reported: it {paper.COSINE_TREND.text}."
    )


def _units(base: pd.DataFrame) -> list[str]:
    """Single images, endpoints alone, and middle steps split half and half, in a sentence each."""

    def batch(scheme: str) -> pd.Series:
        return base[(base.scheme == scheme) & (base.unit == "batch")].set_index("group")["cosine"]

    said = []
    single = base[(base.scheme == JAGG) & (base.unit == "sample")].groupby("group")["cosine"].mean()
    if len(single):
        said.append(
            f"For single images it is highest in group {single.idxmax()} ({single.max():.4f}) and lowest in "
            f"group {single.idxmin()} ({single.min():.4f})."
        )
    own, half, jagg = batch(OWN), batch("endpoints-half"), batch(JAGG)
    said.append(f"Endpoints alone reach {own.min():.2f} … {own.max():.2f}.")
    if jagg.mean() < 1:
        times = (1 - half.mean()) / (1 - jagg.mean())
        said.append(
            "Half of every middle step's signal to either end, without interpolation, loses "
            f"{times:.1f} times what interpolating does (1 - cosine, mean over groups)."
        )
    return said


def _signed(estimate: Estimate) -> str:
    """ "-0.0123 (95 % interval -0.0150 … -0.0096)"."""
    value, half = estimate
    interval = f" (95 % interval {value - half:+.4f} … {value + half:+.4f})"
    return f"{value:+.4f}" + ("" if math.isnan(half) else interval)


def _text(estimate: Estimate) -> str:
    if math.isnan(estimate.value):
        return "-"
    return f"{estimate.value:.4f}" + ("" if math.isnan(estimate.half) else f"±{estimate.half:.4f}")
