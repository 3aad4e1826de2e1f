"""The figures of the wall-clock table, drawn from its CSV alone.

``speedup.png`` has the message: what every scheme saves of DanceGRPO's step and of Flow-GRPO-Fast's update,
measured beside predicted beside reported. ``speedup-more.png`` has the phases, all cells against the cost
model, and the sweeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.common.figures import save
from experiments.speedup.analysis import (
    AGREEMENT,
    EXACT,
    JAGG,
    PAPERS_ROUTED,
    REPORTED,
    ROUTED,
    Cell,
    Median,
    agreement,
    base,
    base_setting,
    cells,
    is_papers,
    reduction,
)
from experiments.speedup.config import Setting
from repro.results import read

PHASES = {"rollout": ("rollout", "decode", "reward"), "update": ("update",), "optimizer": ("optimizer",)}
"""A step's phases, put together as far as they are short."""


def plot(csv: Path) -> Path:
    """Redraw ``speedup.png`` and ``speedup-more.png`` beside the CSV; returns the first."""
    import matplotlib

    matplotlib.use("Agg")
    import seaborn as sns

    found, model = cells(csv), read(csv).model.iloc[0]
    sns.set_theme(style="whitegrid", context="paper", palette="colorblind", font_scale=1.1)
    save(_more(found, model), csv.with_name(f"{csv.stem}-more.png"), dpi=110)
    return save(_main(found, model), csv.with_suffix(".png"))


# The message


def _main(found: Sequence[Cell], model: str) -> Any:
    """What the two recipes' schemes save of that which was reported, a row a scheme."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, 1, figsize=(9, 4.6), sharex=True, constrained_layout=True, height_ratios=(5, 3)
    )
    _saved(axes[0], base(found, "dance_grpo"), "DanceGRPO: % off the training step", "step")
    _saved(
        axes[1],
        base(found, "flow_grpo_fast"),
        "Flow-GRPO-Fast: % off the update, in forwards",
        "update",
    )
    axes[0].margins(x=0.1)  # room for the last label
    named = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    names, handles = zip(*sorted(named.items()), strict=True)
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"Time saved beside the exact gradient, {model}")
    return figure


def _saved(axis: Any, shown: Sequence[Cell], title: str, of: str) -> None:
    """Measured with its interval, predicted, and reported where it was."""
    axis.set_title(title + _elsewhere(shown), loc="left")
    others = [cell for cell in shown if cell.scheme != EXACT]
    if not others:
        _not_measured(axis)
        return
    rows = range(len(others))
    measured = [_times_100(cell.step if of == "step" else cell.priced) for cell in others]
    predicted = [100 * (cell.predicted_step if of == "step" else cell.predicted_update) for cell in others]
    for row, cell in enumerate(others):
        beside = reduction(cell)
        if beside and beside.of == of:
            reported = beside.reported
            # As wide as the range, and wide enough to be seen.
            middle, width = (reported.low + reported.high) / 2, max(reported.high - reported.low, 0.6)
            axis.barh(row, width, left=middle - width / 2, height=0.8, color="C1", label="reported")
    values, spread = _with_errors(measured)
    style = {"fmt": "o", "color": "C0", "markersize": 5, "capsize": 3, "zorder": 3}
    axis.errorbar(values, rows, xerr=spread, label="measured, with its interval", **style)
    axis.plot(predicted, rows, "|", color="0.1", markersize=14, label="predicted by the cost model")
    for row, one in enumerate(measured):
        place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
        axis.annotate(f"{one.value:.1f} %", (max(one.high, predicted[row]), row), **place)
    axis.set_yticks(rows, [cell.label for cell in others])
    axis.set_ylim(len(others) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    axis.axvline(0, color="0.6", linewidth=1)


def _elsewhere(shown: Sequence[Cell]) -> str:
    """The setting, where it is not the paper's."""
    return f" ({shown[0]})" if shown and not is_papers(shown[0].setting) else ""


def _times_100(share: Median) -> Median:
    return Median(*(100 * value for value in share))


def _with_errors(medians: Sequence[Median]) -> tuple[list[float], np.ndarray]:
    """Values, and what matplotlib takes for their intervals, (2, n)."""
    values = [one.value for one in medians]
    return values, np.array([[m.value - m.low for m in medians], [m.high - m.value for m in medians]])


# All of it


class _Axis(NamedTuple):
    """A field of `Setting` that a heat map varies, with its label."""

    field: str
    label: str


def _more(found: Sequence[Cell], model: str) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 2, figsize=(9, 11), constrained_layout=True)
    _phases(axes[0, 0], base(found, "dance_grpo"), "DanceGRPO")
    _phases(axes[0, 1], base(found, "flow_grpo_fast"), "Flow-GRPO-Fast")
    _agreement(axes[1, 0], found)
    _routing(axes[1, 1], found)
    _heat(axes[2, 0], found, _Axis("checkpointing", "checkpointing"), _Axis("group_size", "W"))
    _heat(axes[2, 1], found, _Axis("batch", "images of a minibatch"), _Axis("anchor_chunk", "anchors a call"))
    figure.suptitle(f"Time per training step, {model}: all that was varied")
    return figure


def _phases(axis: Any, shown: Sequence[Cell], title: str) -> None:
    """Stacked medians of the phases."""
    axis.set(title=title + _elsewhere(shown), ylabel="seconds per step")
    if not shown:
        _not_measured(axis)
        return
    bottom = np.zeros(len(shown))
    for phase, among in PHASES.items():
        seconds = np.array([sum(cell.seconds[name] for name in among) for cell in shown])
        axis.bar(range(len(shown)), seconds, bottom=bottom, label=phase, width=0.7)
        bottom += seconds
    axis.set_xticks(range(len(shown)), [cell.label for cell in shown], rotation=30, ha="right", fontsize=8)
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.25)
    axis.legend(fontsize=8, ncols=3, loc="upper right")


def _agreement(axis: Any, found: Sequence[Cell]) -> None:
    """Updates relative to exact's, every cell of other passes: measured against predicted."""
    seen = agreement(found)
    both = [*seen.clear, *seen.marked]
    axis.set(title="update relative to exact's", xlabel="predicted by the cost model", ylabel="measured")
    values, spread = _with_errors([cell.update for cell in both])
    style = {"fmt": ".", "color": "0.7", "markersize": 3, "linewidth": 0.7}
    predicted = [1 - cell.predicted_update for cell in both]
    measured = [1 - value for value in values]
    axis.errorbar(predicted, measured, yerr=spread[::-1], label="in seconds", **style)
    ends = np.array([min(predicted, default=0) - 0.05, 1.05])
    axis.plot(ends, ends, color="0.4", linewidth=1)
    axis.fill_between(ends, ends * (1 - AGREEMENT), ends * (1 + AGREEMENT), color="0.8", label="within 5 %")
    for some, label, colour, fill in (
        (seen.clear, "in forwards", "C0", "C0"),
        (seen.marked, "in forwards, these too short", "C1", "none"),
    ):
        x, y = [1 - cell.predicted_update for cell in some], [1 - cell.priced.value for cell in some]
        axis.plot(x, y, "o", color=colour, mfc=fill, markersize=4, label=label)
    axis.legend(fontsize=8)


def _routing(axis: Any, found: Sequence[Cell]) -> None:
    """The step's saving against jagg_frac, with and without checkpointing."""
    axis.set(title="DanceGRPO: JAGG on a share of the groups", xlabel="jagg_frac", ylabel="% off the step")
    setting = base_setting(found, "dance_grpo")
    for checkpointing, label in ((True, "checkpointing"), (False, "no checkpointing")):
        mode = replace(setting, checkpointing=checkpointing)
        at = {ROUTED[c.scheme]: c for c in found if c.setting == mode and c.scheme in ROUTED}
        if len(at) < 3:
            continue
        some = [at[fraction] for fraction in sorted(at)]
        values, spread = _with_errors([_times_100(cell.step) for cell in some])
        style = {"marker": "o", "markersize": 3.5, "capsize": 2}
        bars = axis.errorbar(sorted(at), values, yerr=spread, label=label, **style)
        predicted = [100 * cell.predicted_step for cell in some]
        axis.plot(sorted(at), predicted, "--", color=bars[0].get_color(), label=f"{label}, predicted")
    if not axis.lines:
        _not_measured(axis)
        return
    _, reported = REPORTED[("dance_grpo", PAPERS_ROUTED)]
    ends = [reported.low, reported.high]
    axis.plot([ROUTED[PAPERS_ROUTED]] * 2, ends, color="0.3", linewidth=5, alpha=0.5, label="reported")
    axis.legend(fontsize=8)


def _heat(axis: Any, found: Sequence[Cell], down: _Axis, across: _Axis) -> None:
    """JAGG's saving in forwards over two fields, the others as in the paper's setting."""
    setting = base_setting(found, "dance_grpo")
    kept = {
        (getattr(cell.setting, down.field), getattr(cell.setting, across.field)): cell
        for cell in found
        if cell.scheme == JAGG and _without(cell.setting, down, across) == _without(setting, down, across)
    }
    axis.set(title="JAGG: % off the update\n(in brackets: predicted)", ylabel=down.label, xlabel=across.label)
    if len(kept) < 3:
        _not_measured(axis)
        return
    ys, xs = (sorted(set(ends)) for ends in zip(*kept, strict=True))
    values = np.full((len(ys), len(xs)), np.nan)
    for (y, x), cell in kept.items():
        saved = values[ys.index(y), xs.index(x)] = 100 * cell.priced.value
        mark = "" if cell.clear or cell.predicted_update == 0 else "*"
        text = f"{saved:.1f}{mark}\n({100 * cell.predicted_update:.1f})"
        colour = "white" if saved > 45 else "black"
        axis.text(xs.index(x), ys.index(y), text, ha="center", va="center", fontsize=8, color=colour)
    axis.imshow(values, aspect="auto", cmap="Blues", vmin=0, vmax=80)
    axis.grid(False)
    axis.set_xticks(range(len(xs)), xs)
    words = {True: "on", False: "off"} if down.field == "checkpointing" else {}
    axis.set_yticks(range(len(ys)), [words.get(y, y) for y in ys])


def _without(setting: Setting, *axes: _Axis) -> Setting:
    """The setting with these fields as they are by default."""
    return replace(setting, **{axis.field: getattr(Setting, axis.field) for axis in axes})


def _not_measured(axis: Any) -> None:
    axis.set_yticks([])
    axis.text(0.5, 0.5, "not measured in this run", ha="center", transform=axis.transAxes, color="0.5")
