"""The cosine table read back: intervals, the printed comparison with the paper, and the figure.

Everything is computed from the CSV alone. Intervals are 95 %: for a batch the delete-a-block jackknife over
its prompts, for prompts and single images Student's t over their mean.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments import paper
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
    """The whole batch's value with the jackknife's interval; ``rows`` of one setting, group and scheme."""
    value = float(rows.loc[rows.unit == "batch", column].iloc[0])
    return Estimate(value, _jackknife(rows.loc[rows.unit == "batch-without", column].to_numpy(float)))


def mean_estimate(rows: pd.DataFrame, column: str, unit: str) -> Estimate:
    """The mean over prompts or single images with Student's interval; undefined values are left out."""
    values = rows.loc[rows.unit == unit, column].dropna().to_numpy(float)
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


def show(csv: Path) -> None:
    """Print reported beside measured, for the base setting."""
    table = read(csv)
    base = table[table.setting == "base"]
    if base.empty:
        return
    rows = []
    for group, at_group in base.groupby("group"):
        jagg = at_group[at_group.scheme == JAGG]
        own = at_group[at_group.scheme == "endpoints-own"]
        first = jagg.iloc[0]
        rows.append(
            (
                group,
                f"{first.sigma_first:.3f} → {first.sigma_last:.3f}",
                f"{paper.COSINE_EARLY_GROUPS.low:g} … {paper.COSINE_EARLY_GROUPS.high:g}"
                if group in paper.COSINE_GROUPS
                else "lower",
                _text(batch_estimate(jagg, "cosine")),
                _text(batch_estimate(jagg, "middle_cosine")),
                _text(mean_estimate(jagg, "cosine", "prompt")),
                _text(mean_estimate(jagg, "cosine", "sample")),
                _text(batch_estimate(own, "cosine")),
            )
        )
    model = base.model.iloc[0]
    caption = trend_sentence(base) + (" " + SMOOTH if model.startswith(zoo.MODELS) else "")
    print_table(
        f"Cosine with the exact gradient, per group, on {model} (t-weighted JAGG; ± is a 95 % interval)",
        (
            "group",
            "sigma",
            "reported",
            "batch",
            "batch, middles",
            "one prompt",
            "one image",
            "endpoints only",
        ),
        rows,
        caption,
    )


def _text(estimate: Estimate) -> str:
    if math.isnan(estimate.value):
        return "-"
    return f"{estimate.value:.4f}" + ("" if math.isnan(estimate.half) else f" ± {estimate.half:.4f}")


def plot(csv: Path) -> Path:
    """Redraw ``cosine.png`` beside the CSV, with earlier snapshots of the model if their tables are near."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    table = read(csv)
    sns.set_theme(style="whitegrid", context="paper", palette="colorblind")
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.6), constrained_layout=True)
    _schemes_panel(axes[0, 0], table)
    _middles_panel(axes[0, 1], table)
    base = table[table.setting == "base"]
    _variants(
        axes[0, 2], table, ["base", "W-5", "W-10"], "W", lambda r: f"W = {_nominal(r)}", against="sigma"
    )
    _variants(
        axes[1, 0],
        table,
        ["eta-0.1", "base", "eta-0.7", "eta-1"],
        "noise of the SDE",
        lambda r: f"eta = {r.eta.iloc[0]:g}",
    )
    _variants(
        axes[1, 1],
        table,
        ["base", "equal-span", "shift-1", "bfloat16"],
        "span of the groups, and precision",
        lambda r: {
            "base": "shift 3, equal steps",
            "equal-span": "shift 3, equal span",
            "shift-1": "shift 1: both equal",
            "bfloat16": "bfloat16",
        }[r.setting.iloc[0]],
        against="sigma",
    )
    _training_panel(axes[1, 2], csv, base)
    model = table.model.iloc[0]
    figure.suptitle(f"Cosine of JAGG's gradient with the exact one: {model}, measured here", fontsize=12)
    target = csv.with_suffix(".png")
    figure.savefig(target, dpi=150, metadata={"Software": None})
    plt.close(figure)
    return target


def _nominal(rows: pd.DataFrame) -> int:
    return int(rows.steps.max())


def _curve(
    axis, rows: pd.DataFrame, column: str, label: str, x: str = "group", lost: bool = False, **style
) -> None:
    """One scheme's batch values over the groups; ``lost`` draws 1 - value."""
    points = [(at[x].iloc[0], *batch_estimate(at, column)) for _, at in rows.groupby("group")]
    xs, values, halves = map(np.array, zip(*points, strict=True))
    if lost:
        values = 1 - values
    axis.errorbar(xs, values, yerr=halves, marker="o", markersize=3.5, capsize=2, label=label, **style)


def _schemes_panel(axis, table: pd.DataFrame) -> None:
    base = table[table.setting == "base"]
    low, high = paper.COSINE_EARLY_GROUPS.low, paper.COSINE_EARLY_GROUPS.high
    axis.fill_between(
        [paper.COSINE_GROUPS[0] - 0.2, paper.COSINE_GROUPS[-1] + 0.2],
        low,
        high,
        color="0.75",
        alpha=0.6,
        label=f"reported, {low:g}-{high:g}",
    )
    names = {
        "jagg-time": "JAGG, t-weights",
        "jagg-index": "JAGG, index weights",
        "endpoints-own": "endpoints: own s",
        "endpoints-sum": "endpoints: whole sum",
        "endpoints-half": "endpoints: half and half",
        "endpoints-nearest": "endpoints: nearest",
    }
    for scheme, label in names.items():
        dashes: dict[str, Any] = {"linestyle": "--"} if scheme == "jagg-index" else {}
        _curve(axis, base[base.scheme == scheme], "cosine", label, **dashes)
    axis.set(
        xlabel="group (0 = most noise)", ylabel="cosine, whole batch", title="schemes", ylim=(None, 1.02)
    )
    axis.set_xticks(sorted(base.group.unique()))
    axis.legend(fontsize=6.5)


def _middles_panel(axis, table: pd.DataFrame) -> None:
    base = table[(table.setting == "base") & (table.scheme == JAGG)]
    _curve(axis, base, "cosine", "whole batch, all steps", lost=True)
    _curve(axis, base, "middle_cosine", "whole batch, middle steps only", lost=True)
    for unit, label in (("prompt", "one prompt's images"), ("sample", "single images")):
        groups = [(g, mean_estimate(at, "cosine", unit)) for g, at in base.groupby("group")]
        if all(math.isnan(e.value) for _, e in groups):
            continue
        xs, estimates = zip(*groups, strict=True)
        axis.errorbar(
            xs,
            [1 - e.value for e in estimates],
            yerr=[e.half for e in estimates],
            marker="s",
            markersize=3.5,
            capsize=2,
            label=label,
        )
    _lost(axis, "group (0 = most noise)", "JAGG, by what is summed")
    axis.set_xticks(sorted(base.group.unique()))


def _variants(
    axis, table: pd.DataFrame, settings: list[str], title: str, label, against: str = "group"
) -> None:
    """JAGG's batch cosine under several settings."""
    shown = [s for s in settings if s in set(table.setting)]
    for setting in shown:
        rows = table[(table.setting == setting) & (table.scheme == JAGG)]
        rows = rows.assign(sigma=(rows.sigma_first + rows.sigma_last) / 2)
        # Groups of one or two steps are exact, which a logarithmic axis cannot show.
        _curve(axis, rows[rows.steps > 2], "cosine", label(rows), x=against, lost=True)
    if len(shown) < 2:
        _not_measured(axis)
    _lost(axis, "group (0 = most noise)" if against == "group" else "sigma at the group's middle", title)
    if against == "sigma":
        axis.invert_xaxis()


def _training_panel(axis, csv: Path, base: pd.DataFrame) -> None:
    folder = csv.parent
    others = sorted(folder.parent.glob(f"{folder.name}-step-*/{csv.name}"))
    tables = [base, *(read(other) for other in others)]
    tables = sorted(
        (t[(t.setting == "base") & (t.scheme == JAGG)] for t in tables),
        key=lambda t: t.training_steps.iloc[0],
    )
    if len(tables) > 1:
        for rows in tables:
            _curve(axis, rows, "cosine", f"{int(rows.training_steps.iloc[0]):,} steps", lost=True)
    else:
        _not_measured(axis)
    _lost(axis, "group (0 = most noise)", "training length of the model")


def _not_measured(axis) -> None:
    axis.text(0.5, 0.5, "not measured in this run", ha="center", transform=axis.transAxes, color="0.5")


def _lost(axis, xlabel: str, title: str) -> None:
    axis.set(xlabel=xlabel, ylabel="1 - cosine", title=title)
    if axis.has_data() and axis.lines:
        axis.set_yscale("log")
        axis.legend(fontsize=6.5)
