"""The wall-clock table's figure: phases side by side, predicted against measured, and the sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import paper
from experiments.common.figures import save
from experiments.convergence.arms import ALGORITHMS
from experiments.speedup.analysis import AGREEMENT, Cell, cells, is_base
from experiments.speedup.report import REPORTED
from repro.results import read
from repro.training.metrics import PHASES

NAMES = {"jagg-time": "JAGG", **ALGORITHMS}


def plot(csv: Path) -> Path:
    """Draw ``speedup.png`` beside the CSV, from it alone."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    table = read(csv)
    found = cells(csv)
    sns.set_theme(style="whitegrid", context="paper", palette="colorblind")
    figure, axes = plt.subplots(2, 3, figsize=(13, 7), constrained_layout=True)
    for axis, algorithm in zip(axes[0], ("dance_grpo", "flow_grpo_fast"), strict=False):
        _phases(axis, [c for c in found if is_base(c, table) and c.of("algorithm") == algorithm], algorithm)
    _agreement(axes[0, 2], [c for c in found if c.scheme != "exact"])
    dance = [c for c in found if c.of("algorithm") == "dance_grpo"]
    _heat(axes[1, 0], dance, table, ("checkpointing", "group_size"))
    _heat(axes[1, 1], dance, table, ("batch", "anchor_chunk"))
    _routing(axes[1, 2], [c for c in dance if is_base(c, table)])
    first = table.iloc[0]
    figure.suptitle(
        f"Time per training step: {first['model']}, measured here on {first['device']}", fontsize=12
    )
    target = csv.with_suffix(".png")
    return save(figure, target)


def _phases(axis: Any, found: list[Cell], algorithm: str) -> None:
    """Stacked phases, the paper's mode: checkpointing on, all weights."""
    shown = [
        c
        for c in found
        if c.of("checkpointing") and (c.of("weights"), c.of("velocities")) == ("full", "recompute")
    ]
    shown = [c for c in shown if not c.scheme.startswith("routed") or c.scheme == "routed-0.6"]
    axis.set(title=f"{NAMES[algorithm]}, checkpointing on", ylabel="seconds per step")
    if not shown:
        _not_measured(axis)
        return
    bottom = np.zeros(len(shown))
    for phase in PHASES:
        seconds = np.array([c.seconds[phase] for c in shown])
        axis.bar(range(len(shown)), seconds, bottom=bottom, label=phase, width=0.7)
        bottom += seconds
    for i, cell in enumerate(shown):
        if cell.scheme == "exact":
            continue
        kind, reported = REPORTED.get((algorithm, cell.scheme), (None, None))
        text = f"step -{100 * cell.step.value:.1f} %\nupdate -{100 * cell.update.value:.1f} %"
        text += f"\nreported:\n{kind} -{reported.low:g} … {reported.high:g} %" if reported else ""
        axis.text(i, bottom[i], text, ha="center", va="bottom", fontsize=6)
    axis.set_ylim(0, 1.25 * bottom.max())
    labels = [NAMES.get(c.scheme, c.scheme.replace("-", "-\n", 1)) for c in shown]
    axis.set_xticks(range(len(shown)), labels, fontsize=7)
    axis.legend(fontsize=6.5, loc="lower left")


def _agreement(axis: Any, found: list[Cell]) -> None:
    """Update time relative to exact: in forwards and in seconds against predicted, every cell."""
    axis.set(title="update relative to exact", xlabel="predicted by the cost model", ylabel="measured")
    x = [1 - c.predicted_update for c in found]
    y = np.array([1 - c.update.value for c in found])
    spread = [y - [1 - c.update.high for c in found], np.array([1 - c.update.low for c in found]) - y]
    style = {"fmt": ".", "color": "0.7", "markersize": 3, "linewidth": 0.7}
    axis.errorbar(x, y, yerr=spread, label="in seconds", **style)
    ends = np.array([0.0, 1.15])
    axis.plot(ends, ends, color="0.4", linewidth=1)
    axis.fill_between(ends, ends * (1 - AGREEMENT), ends * (1 + AGREEMENT), color="0.8", label="within 5 %")
    for clear, label in ((True, "in forwards"), (False, "in forwards, these too short")):
        some = [c for c in found if c.clear == clear]
        if some:
            style = {} if clear else {"mfc": "none"}
            points = [(1 - c.predicted_update, 1 - c.priced.value) for c in some]
            axis.plot(*zip(*points, strict=True), "o", markersize=4, label=label, **style)
    axis.legend(fontsize=6.5)


def _heat(axis: Any, found: list[Cell], table: pd.DataFrame, by: tuple[str, str]) -> None:
    """JAGG's saving in forwards over two settings, the others as in the base one; predicted in brackets."""
    base = {
        "checkpointing": True,
        "weights": "full",
        "group_size": int(paper.GROUP_SIZE.low),
        "batch": table.batch.max(),
        "anchor_chunk": 2,
        "velocities": "recompute",
    }
    kept = [
        c
        for c in found
        if c.scheme == "jagg-time" and all(c.of(name) == base[name] for name in base if name not in by)
    ]
    labels = {"group_size": "W", "anchor_chunk": "anchors per backward", "checkpointing": "checkpointing"}
    axis.set(
        title="JAGG: % off the update (predicted)", ylabel=labels.get(by[0], by[0]), xlabel=labels[by[1]]
    )
    ys, xs = (sorted({c.of(name) for c in kept}) for name in by)
    if len(kept) < 3:
        _not_measured(axis)
        return
    values = np.full((len(ys), len(xs)), np.nan)
    for cell in kept:
        y, x = ys.index(cell.of(by[0])), xs.index(cell.of(by[1]))
        values[y, x] = 100 * cell.priced.value
        mark = "" if cell.clear else "*"
        text = f"{values[y, x]:.1f}{mark}\n({100 * cell.predicted_update:.1f})"
        axis.text(x, y, text, ha="center", va="center", fontsize=7)
    axis.imshow(values, aspect="auto", cmap="Blues", vmin=0, vmax=80)
    axis.grid(False)
    axis.set_xticks(range(len(xs)), xs)
    axis.set_yticks(range(len(ys)), ["on" if y else "off" for y in ys] if by[0] == "checkpointing" else ys)


def _routing(axis: Any, found: list[Cell]) -> None:
    """The step's saving against jagg_frac."""
    axis.set(title="routing", xlabel="jagg_frac", ylabel="% off the step")
    for checkpointing in (True, False):
        some = {
            float(c.scheme.removeprefix("routed-")): c
            for c in found
            if c.scheme.startswith("routed-")
            and c.of("checkpointing") == checkpointing
            and (c.of("weights"), c.of("velocities")) == ("full", "recompute")
        }
        if len(some) < 3:
            continue
        xs = sorted(some)
        y = np.array([100 * some[x].step.value for x in xs])
        spread = [
            y - [100 * some[x].step.low for x in xs],
            np.array([100 * some[x].step.high for x in xs]) - y,
        ]
        mode = "checkpointing" if checkpointing else "no checkpointing"
        bars = axis.errorbar(xs, y, yerr=spread, marker="o", markersize=3.5, capsize=2, label=mode)
        predicted = [100 * some[x].predicted_step for x in xs]
        axis.plot(xs, predicted, "--", color=bars[0].get_color(), linewidth=1, label=f"{mode}, predicted")
    if not axis.lines:
        _not_measured(axis)
        return
    low, high = paper.STEP_REDUCTION.low, paper.STEP_REDUCTION.high
    axis.plot([paper.JAGG_FRAC.low] * 2, [low, high], color="0.3", linewidth=5, alpha=0.5, label="reported")
    axis.legend(fontsize=6.5)


def _not_measured(axis: Any) -> None:
    axis.text(0.5, 0.5, "not measured in this run", ha="center", transform=axis.transAxes, color="0.5")
