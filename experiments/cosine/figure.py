"""The figures of the cosine table, drawn from its CSV alone.

``cosine.png`` has the message: how close JAGG's gradient is to the exact one, group by group, beside what is
reported. ``cosine-more.png`` has all schemes, variants and earlier snapshots, as 1 - cosine on a logarithmic
axis: what is lost, since a cosine of 0.999 and one of 0.99 look alike on a linear one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import paper
from experiments.common.figures import save
from experiments.cosine.analysis import (
    JAGG,
    OWN,
    SCHEMES,
    Estimate,
    batch_estimate,
    comparable,
    load,
    mean_estimate,
)
from repro.results import read

GROUP_AXIS = "group (0 = most noise)"
Measure = Callable[[pd.DataFrame], Estimate]


def plot(csv: Path) -> Path:
    """Redraw ``cosine.png`` and ``cosine-more.png`` beside the CSV; returns the first.

    Raises:
        InputError: the CSV is another table.
    """
    import matplotlib

    matplotlib.use("Agg")
    import seaborn as sns

    table = load(csv)
    sns.set_theme(style="whitegrid", context="paper", palette="colorblind", font_scale=1.1)
    save(_more(csv, table), csv.with_name(f"{csv.stem}-more.png"), dpi=110)
    return save(_main(table), csv.with_suffix(".png"))


def _main(table: pd.DataFrame) -> Any:
    """Cosines with the reported band, and what JAGG loses, group by group."""
    import matplotlib.pyplot as plt

    base = table[table.variant == "base"]
    figure, (cosines, losses) = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    jagg, own = base[base.scheme == JAGG], base[base.scheme == OWN]
    batch: Measure = lambda at: batch_estimate(at, "cosine")  # noqa: E731
    single: Measure = lambda at: mean_estimate(at, "cosine", "sample")  # noqa: E731
    if comparable(base):
        low, high = paper.COSINE_EARLY_GROUPS.low, paper.COSINE_EARLY_GROUPS.high
        first, last = paper.COSINE_GROUPS[0], paper.COSINE_GROUPS[-1]
        cosines.fill_between([first - 0.2, last + 0.2], low, high, color="0.8")
        reported = f"JAGG, reported: {low:g} … {high:g}"
        cosines.text((first + last) / 2, (low + high) / 2, reported, ha="center", va="center")
    curves = (
        (jagg, batch, "JAGG, whole batch", "C0", "o"),
        (jagg, single, "JAGG, single images", "C1", "s"),
        (own, batch, "endpoints only, whole batch", "C2", "^"),
    )
    for axis, lost in ((cosines, False), (losses, True)):
        for rows, estimate, label, colour, marker in curves:
            xs, estimates = _by_group(rows, estimate)
            if all(math.isnan(e.value) for e in estimates):
                continue
            _line(axis, xs, estimates, label, lost=lost, color=colour, marker=marker)
            axis.set_xticks(xs)
        axis.set_xlabel(GROUP_AXIS)
    cosines.set(title="cosine with the exact gradient", ylim=(None, 1.02))
    losses.set(title="1 - cosine: what is lost", yscale="log")
    losses.grid(axis="y", which="minor", visible=False)
    handles, labels = losses.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"JAGG's gradient against the exact one on {base.model.iloc[0]}")
    return figure


def _more(csv: Path, table: pd.DataFrame) -> Any:
    """All schemes and variants, and earlier snapshots of the model if their tables are near."""
    import matplotlib.pyplot as plt

    jagg = table[table.scheme == JAGG]
    figure, axes = plt.subplots(4, 2, figsize=(9, 14), constrained_layout=True)
    _schemes(axes[0, 0], table[table.variant == "base"])
    _units(axes[0, 1], jagg[jagg.variant == "base"])
    _variants(axes[1, 0], jagg, ("base", "W-5", "W-10"), "W = {steps}", "group size")
    _variants(axes[1, 1], jagg, ("base", "eta-0.7", "eta-1"), "eta {eta:g}", "noise of the SDE")
    cuts = ("base", "equal-span", "shift-1")
    _variants(axes[2, 0], jagg, cuts, "shift {shift:g} ({variant})", "noise level, span held equal")
    _spans(axes[2, 1], jagg)
    _training(axes[3, 0], csv, jagg[jagg.variant == "base"])
    _precision(axes[3, 1], jagg)
    figure.suptitle(f"JAGG's gradient against the exact one on {table.model.iloc[0]}: all that was varied")
    return figure


def _line(axis: Any, xs: Any, estimates: list[Estimate], label: str, lost: bool = True, **style: Any) -> None:
    values = np.array([1 - e.value if lost else e.value for e in estimates])
    halves = np.array([e.half for e in estimates])
    style = {"marker": "o", "markersize": 3.5, "capsize": 2} | style
    axis.errorbar(xs, values, yerr=halves, label=label, **style)


def _by_group(rows: pd.DataFrame, estimate: Measure) -> tuple[list, list[Estimate]]:
    groups = [(group, estimate(at)) for group, at in rows.groupby("group")]
    return [group for group, _ in groups], [value for _, value in groups]


def _schemes(axis: Any, base: pd.DataFrame) -> None:
    low, high = paper.COSINE_EARLY_GROUPS.low, paper.COSINE_EARLY_GROUPS.high
    first, last = paper.COSINE_GROUPS[0], paper.COSINE_GROUPS[-1]
    reported = f"JAGG, reported: {low:g} to {high:g}"
    axis.fill_between([first - 0.2, last + 0.2], low, high, color="0.75", alpha=0.6, label=reported)
    for scheme, label in SCHEMES.items():
        xs, estimates = _by_group(base[base.scheme == scheme], lambda at: batch_estimate(at, "cosine"))
        style = {"linestyle": "--"} if scheme == "jagg-index" else {}
        _line(axis, xs, estimates, label, lost=False, **style)
    axis.set(xlabel=GROUP_AXIS, ylabel="cosine", title="schemes, whole batch")
    axis.set_xticks(xs)
    axis.legend(fontsize=6.5)


def _units(axis: Any, base: pd.DataFrame) -> None:
    curves: dict[str, Measure] = {
        "whole batch": lambda at: batch_estimate(at, "cosine"),
        "whole batch, middle steps only": lambda at: batch_estimate(at, "middle_cosine"),
        "one prompt's images, mean": lambda at: mean_estimate(at, "cosine", "prompt"),
        "single images, mean": lambda at: mean_estimate(at, "cosine", "sample"),
    }
    for label, estimate in curves.items():
        xs, estimates = _by_group(base, estimate)
        if not all(math.isnan(e.value) for e in estimates):
            _line(axis, xs, estimates, label)
    axis.set_xticks(xs)
    _finish(axis, GROUP_AXIS, "JAGG, by what is summed")


def _variants(axis: Any, jagg: pd.DataFrame, variants: Sequence[str], label: str, title: str) -> None:
    """Several variants against the noise level at the middle of each group; ``label`` formats a row."""
    for variant in variants:
        # Groups of one or two steps are exact, which a logarithmic axis cannot show.
        rows = jagg[(jagg.variant == variant) & (jagg.steps > 2)]
        if len(rows):
            middles = rows.groupby("group")[["sigma_first", "sigma_last"]].first().mean(axis=1)
            _, estimates = _by_group(rows, lambda at: batch_estimate(at, "cosine"))
            _line(axis, middles, estimates, label.format(**rows.iloc[0]))
    _finish(axis, "sigma at the group's middle", title, measured=set(variants) <= set(jagg.variant))
    axis.invert_xaxis()


def _spans(axis: Any, jagg: pd.DataFrame) -> None:
    """Every group of every variant: what is lost against the span of sigma that is interpolated over."""
    from matplotlib.ticker import NullFormatter

    rows = jagg[(jagg.steps > 2) & (jagg.unit == "batch")]
    for (variant, steps), at in rows.groupby(["variant", "steps"]):
        if variant in ("base", "equal-span", "shift-1", "W-10", "W-5"):
            axis.scatter(at.sigma_span, 1 - at.cosine, s=14, label=f"{variant}, {steps} steps")
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())  # its labels would overlap
    _finish(axis, "span of sigma between the ends", "all groups, against their span", measured=True)


def _training(axis: Any, csv: Path, base: pd.DataFrame) -> None:
    others = [read(path) for path in csv.parent.parent.glob(f"{csv.parent.name}-step-*/{csv.name}")]
    tables = [base, *(t[(t.variant == "base") & (t.scheme == JAGG)] for t in others)]
    for rows in sorted(tables, key=lambda t: t.training_steps.iloc[0]) if others else ():
        xs, estimates = _by_group(rows, lambda at: batch_estimate(at, "cosine"))
        _line(axis, xs, estimates, f"{int(rows.training_steps.iloc[0]):,} training steps")
        axis.set_xticks(xs)
    _finish(axis, GROUP_AXIS, "training length of the model", measured=bool(others))


def _precision(axis: Any, jagg: pd.DataFrame) -> None:
    """bfloat16 and float32 on the prompts that both were measured on."""
    rows = jagg[(jagg.unit == "prompt") & jagg.variant.isin(["base", "bfloat16"])]
    shared = set(rows.unit_id[rows.variant == "bfloat16"])
    for dtype, at in rows[rows.unit_id.isin(shared)].groupby("dtype"):
        xs, estimates = _by_group(at, lambda g: mean_estimate(g, "cosine", "prompt"))
        _line(
            axis,
            xs,
            [Estimate(e.value, math.nan) for e in estimates],
            f"{dtype}, mean of {len(shared)} prompts"
            + (" (too few for an interval)" if len(shared) < 16 else ""),
        )
        axis.set_xticks(xs)
    _finish(axis, GROUP_AXIS, "precision of the network", measured=bool(shared))


def _finish(axis: Any, xlabel: str, title: str, measured: bool = True) -> None:
    axis.set(xlabel=xlabel, ylabel="1 - cosine", title=title)
    if axis.has_data():
        axis.set_yscale("log")
        axis.legend(fontsize=6.5)
    else:
        axis.set(xticks=[], yticks=[])
    if not measured:
        axis.text(
            0.5, 0.95, "not all measured in this run", ha="center", transform=axis.transAxes, color="0.5"
        )
