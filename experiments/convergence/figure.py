"""The convergence table's figures, from complete runs alone, at every regime's main learning rate.

``convergence.png`` has the message: whether JAGG's reward follows exact's. ``convergence-more.png`` has the
other arms, regimes, measures and learning rates; ``convergence-samples.png`` pictures, where some were kept.
Intervals are 95 % t intervals over training seeds; differences are paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common.figures import save
from experiments.common.intervals import MARGIN, mean_and_half
from experiments.common.markdown import counted
from experiments.convergence.analysis import (
    BASELINE,
    RUN,
    at_main_rate,
    at_steps,
    complete,
    runs,
    spent,
)
from experiments.convergence.arms import ALGORITHMS, ARMS, DIVERSITY, REGIMES, REWARD, ArmName, RegimeName
from experiments.convergence.report import short

STYLES: dict[ArmName, tuple[str, str]] = {
    "exact": ("#000000", "-"),
    "jagg": ("#0072B2", "-"),
    "routed": ("#56B4E9", "--"),
    "endpoints-own": ("#D55E00", "-"),
    "endpoints-sum": ("#D55E00", "--"),
    "endpoints-half": ("#D55E00", ":"),
    "endpoints-nearest": ("#D55E00", "-."),
    "subset": ("#009E73", "-"),
    "subset-paper": ("#009E73", "--"),
    "timestep-fraction": ("#009E73", ":"),
    "window": ("#CC79A7", "-"),
}
"""Colour, of Okabe and Ito's for the colour-blind, and dashes: a family of arms has one colour."""
MAIN: dict[ArmName, str] = {
    "exact": "exact",
    "jagg": "JAGG",
    "routed": "JAGG, routed",
    "endpoints-own": "endpoints, own s",
    "subset": "exact, fewer steps",
}
"""Arms of the main figure, and names that have room at a line's end."""
GRID: dict[Any, Any] = {
    "grid.color": "0.9",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
}
GRID |= {"axes.spines.right": False, "font.size": 9, "axes.titlesize": 10}


def plot(csv: Path) -> Path:
    """Redraw ``convergence.png`` beside the CSV, which is returned, and the others."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    everything = complete(csv)
    table = at_main_rate(everything)
    with plt.rc_context(GRID | {"axes.titlesize": 8.5}):
        save(_more(table, everything, spent(csv)), csv.with_name(f"{csv.stem}-more.png"), dpi=100)
        _samples(csv, table)
    with plt.rc_context(GRID):
        return save(_main(table), csv.with_suffix(".png"), dpi=130)


def _main(table: pd.DataFrame) -> Any:
    """Reward against training step, and every arm minus exact, in the first regime there is."""
    import matplotlib.pyplot as plt

    reward = _of_regime(table, _regimes(table)[0])
    figure, (curves, differences) = plt.subplots(1, 2, figsize=(8.6, 3.6), constrained_layout=True)
    arms = [arm for arm in MAIN if arm in set(reward.arm)]
    points = curve_points(reward, "step")
    _curves(curves, points, arms)
    _label_ends(curves, points, arms)
    curves.set(xlabel="training step", title="reward on evaluation prompts")
    _differences(differences, reward, [arm for arm in arms if arm != BASELINE])
    model, algorithm = table.model.iloc[0], ALGORITHMS[table.algorithm.iloc[0]]
    figure.suptitle(f"Does JAGG's reward follow exact's? {model}, {algorithm}, mean over seeds", fontsize=11)
    return figure


def _regimes(table: pd.DataFrame) -> list[RegimeName]:
    return [name for name in REGIMES if name in set(table.regime)]


def _of_regime(table: pd.DataFrame, regime: RegimeName) -> pd.DataFrame:
    """The reward's rows of one regime."""
    return table[(table.regime == regime) & (table.metric == REWARD)]


def curve_points(here: pd.DataFrame, x: str, spending: pd.DataFrame | None = None) -> pd.DataFrame:
    """Arm, step, x and the seeds' mean; x is averaged over an arm's seeds.

    An arm of fewer seeds than the baseline's is put where it would be if all of the baseline's seeds had its
    difference: seeds differ as much as arms do.
    """
    baseline = here[here.arm == BASELINE].set_index(["step", "seed"])["value"]
    if spending is not None:
        here = here.merge(at_steps(spending, here.step.unique()), on=[*RUN, "step"])
    rows = []
    for (arm, step), points in here.groupby(["arm", "step"]):
        mean = points.value.mean()
        same = [(step, seed) for seed in points.seed]
        if len(same) < len(baseline.get(step, [])) and set(same) <= set(baseline.index):
            mean += baseline[step].mean() - baseline[same].mean()
        rows.append((arm, step, points[x].mean(), mean))
    return pd.DataFrame(rows, columns=["arm", "step", "x", "mean"])


def _curves(axis: Any, points: pd.DataFrame, arms: Sequence[ArmName]) -> None:
    """One line an arm, in its own style whichever arms are there."""
    for arm in arms:
        curve = points[points.arm == arm]
        colour, dashes = STYLES[arm]
        axis.plot(curve.x, curve["mean"], dashes, color=colour, label=ARMS[arm].label, linewidth=1.5)


def _label_ends(axis: Any, points: pd.DataFrame, arms: Sequence[ArmName]) -> None:
    """The arms' names at the ends of their lines, moved apart where these meet."""
    ends = {arm: points[points.arm == arm].iloc[-1]["mean"] for arm in arms}
    order = sorted(arms, key=lambda arm: ends[arm])
    low, high = axis.get_ylim()
    gap, places, place = 0.07 * (high - low), {}, -math.inf
    for arm in order:
        place = places[arm] = max(ends[arm], place + gap)
    place = high + gap
    for arm in reversed(order):
        place = places[arm] = min(places[arm], place - gap)
    last = points.x.max()
    for arm in arms:
        axis.annotate(
            MAIN[arm],
            (last, ends[arm]),
            (1.04 * last, places[arm]),
            color=STYLES[arm][0],
            fontsize=8.5,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": STYLES[arm][0], "linewidth": 0.5, "shrinkB": 0},
        )
    axis.set_xlim(0, last)
    axis.locator_params(axis="x", integer=True)


def _differences(axis: Any, reward: pd.DataFrame, arms: Sequence[ArmName]) -> None:
    """Arms minus exact by training step, in per cent of exact's last rise, with intervals."""
    wide = reward.pivot(index=["step", "seed"], columns="arm", values="value")
    last, exact = wide.index.get_level_values("step").max(), wide[BASELINE].dropna()
    rise = exact[last].mean() - exact[0].mean()
    axis.axhspan(-100 * MARGIN, 100 * MARGIN, color="0.88", linewidth=0)
    axis.axhline(0, color=STYLES[BASELINE][0], linewidth=1)
    for number, arm in enumerate(arms):
        difference = 100 * (wide[arm] - wide[BASELINE]).dropna() / rise
        found = {step: mean_and_half(values) for step, values in difference.groupby("step") if step}
        # Beside each other: one arm's intervals would hide another's.
        beside = 0.012 * last * (number - (len(arms) - 1) / 2)
        (means, halves), (colour, dashes) = zip(*found.values(), strict=True), STYLES[arm]
        style = {"color": colour, "linestyle": dashes, "capsize": 2, "linewidth": 1.3}
        axis.errorbar([step + beside for step in found], means, halves, **style)
    margin = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
    axis.annotate("margin of\nequality", (1.02, 0), va="center", color="0.4", fontsize=8, **margin)
    axis.set_xlim(0, None)
    axis.locator_params(axis="x", integer=True)
    axis.set(xlabel="training step", title="minus exact, in % of exact's rise")


def _more(table: pd.DataFrame, everything: pd.DataFrame, spending: pd.DataFrame) -> Any:
    """All arms, the other regimes, what was not trained on, and learning rates; three panels a row."""
    import matplotlib.pyplot as plt

    first, *others = _regimes(table)
    here, reward = table[table.regime == first], _of_regime(table, first)
    arms = [arm for arm in ARMS if arm in set(reward.arm)]
    panels: list[Callable[[Any], None]] = [
        partial(_panel, points=curve_points(reward, "step"), arms=arms, title="all arms"),
        partial(
            _panel,
            points=curve_points(reward, "seconds", spending),
            arms=arms,
            title="all arms, against the clock",
            x="seconds of training",
        ),
    ]
    diversity = here[here.metric == DIVERSITY]
    if len(diversity):
        points = curve_points(diversity, "step")
        title = "diversity within a prompt (1 - cosine)"
        panels.append(partial(_panel, points=points, arms=arms, title=title))
    if set(here.metric) - {REWARD, DIVERSITY}:
        panels.append(partial(_untrained, here=here))
    for regime in others:
        of_regime = _of_regime(table, regime)
        own = [arm for arm in ARMS if arm in set(of_regime.arm)]
        seeds = counted(of_regime[of_regime.arm == BASELINE].seed.nunique(), "seed")
        title = f"{REGIMES[regime].label} ({seeds})".replace(", ", ",\n", 1)
        panels.append(partial(_panel, points=curve_points(of_regime, "step"), arms=own, title=title))
    of_rates = _of_regime(everything, first)
    if of_rates.lr_factor.nunique() > 1:
        panels.append(partial(_rates, outcomes=runs(of_rates)))
    rows = math.ceil(len(panels) / 3)
    figure, axes = plt.subplots(rows, 3, figsize=(11, 3 * rows + 0.9), constrained_layout=True, squeeze=False)
    for axis, draw in zip(axes.flat, panels, strict=False):
        draw(axis)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    model, algorithm = table.model.iloc[0], ALGORITHMS[table.algorithm.iloc[0]]
    figure.suptitle(f"{model}, {algorithm}: reward on evaluation prompts, mean over seeds", fontsize=11)
    return figure


def _panel(
    axis: Any, points: pd.DataFrame, arms: Sequence[ArmName], title: str, x: str = "training step"
) -> None:
    _curves(axis, points, arms)
    axis.set(xlabel=x, title=title)


def _untrained(axis: Any, here: pd.DataFrame) -> None:
    """What the policy was not trained on: rise over the start, exact solid, JAGG dashed."""
    metrics = [m for m in here.metric.unique() if m not in (REWARD, DIVERSITY)]
    shown = here[here.arm.isin([BASELINE, "jagg"])]
    for metric, colour in zip(metrics, ("#E69F00", "#CC79A7", "#0072B2", "#000000"), strict=False):
        of_metric = shown[shown.metric == metric]
        wide = of_metric.pivot(index="step", columns=["arm", "seed"], values="value")
        rises = (wide - wide.iloc[0]).T.groupby("arm").mean().T
        # Scorers have scales of their own (PickScore's is about 100 times a cosine's).
        scale = rises.abs().max(axis=None) or 1.0
        for arm, dashes in ((BASELINE, "-"), ("jagg", "--")):
            if arm in rises:
                axis.plot(rises.index, rises[arm] / scale, dashes, color=colour, linewidth=1.5)
        axis.plot([], [], color=colour, label=f"{short(metric)}, full scale {scale:.2g}")
    axis.set(xlabel="training step", title="not trained on: exact solid, JAGG dashed")
    axis.legend(fontsize=7)


def _rates(axis: Any, outcomes: pd.DataFrame) -> None:
    """The rise at the end against the learning rate, of arms with several, over seeds that have all."""
    for arm in [arm for arm in ARMS if arm in set(outcomes.arm)]:
        of_arm = outcomes[outcomes.arm == arm]
        means = of_arm.pivot(index="seed", columns="lr_factor", values="final").dropna().mean()
        if len(means) > 1:
            colour, dashes = STYLES[arm]
            axis.plot(means.index, means, dashes, color=colour, marker="o", markersize=3, linewidth=1.5)
    factors = sorted(outcomes.lr_factor.unique())
    axis.set_xscale("log")
    axis.set_xticks(factors, [f"×{factor:.3g}" for factor in factors])
    axis.minorticks_off()
    axis.set(xlabel="learning rate, times the recipe's", title="rise at the end, of seeds with all rates")


def _samples(csv: Path, table: pd.DataFrame) -> None:
    """Before and after, the same prompts and noise, of the first seed; a row an arm of the first regime."""
    import matplotlib.pyplot as plt

    folder, regime = csv.parent / "samples", _regimes(table)[0]
    factor = table[table.regime == regime].lr_factor.iloc[0]
    strips = [("before", path) for path in sorted(folder.glob(f"{regime}-*-step0.png"))[:1]]
    for arm, what in ARMS.items():
        after = sorted(folder.glob(f"{regime}-{arm}-lr{factor:g}-seed*-step[1-9]*.png"))
        strips += [(what.label, path) for path in after[:1]]
    if len(strips) < 2:
        return
    figure, axes = plt.subplots(len(strips), 1, figsize=(6.5, len(strips)), constrained_layout=True)
    for axis, (name, path) in zip(axes, strips, strict=True):
        axis.imshow(plt.imread(path))
        axis.set_title(name, loc="left", fontsize=7, pad=2)
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
    save(figure, csv.with_name(f"{csv.stem}-samples.png"), dpi=75, pictures=True)
