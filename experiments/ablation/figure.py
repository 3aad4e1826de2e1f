"""The ablation read back: the contrasts in words, the reported statement beside them, and the figure."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import paper
from experiments.common.figures import save
from experiments.common.intervals import mean_and_half
from experiments.common.markdown import listed, signed
from experiments.convergence.analysis import at_main_rate
from experiments.convergence.arms import ARMS, REGIMES, REWARD
from experiments.convergence.figure import BASELINE, LEARNED, learning, theme
from repro.console import print_table
from repro.results import read

OUTCOME = "curve"
"""The outcome that is printed and drawn; the CSV has both."""
COSTS = {"backwards": 1e6, "forwards": 1e6, "seconds": 1e3}
"""Columns of the efficiency table, and the amount of each that a rise is given for."""
EFFICIENCY = ("arm", "seeds", "rise", "per 10⁶ backwards", "per 10⁶ forwards", "per 1000 s")
"""Headings of `efficiency_rows`."""
VERDICTS = {
    "lower": "lower",
    "equal": "equal within the margin",
    "higher": "higher",
    "undecided": "undecided",
}
"""Beginnings of `experiments.common.intervals.Comparison.verdict`, and what to call them."""


def show(csv: Path) -> None:
    """Print the contrasts of the training reward, then what a rise cost."""
    table, efficiency = read(csv), at_main_rate(read(csv.with_name("ablation-efficiency.csv")))
    rows = [
        (
            r.regime,
            f"{ARMS[r.first].label} minus {ARMS[r.second].label}" + at_rates(r.rates),
            r.seeds,
            signed(r.difference, r.half_interval),
            _p(r.p_sign_flip),
            f"{r.margin:.4f}",
            _p(r.p_equivalence),
            r.verdict,
        )
        for r in table[(table.metric == REWARD) & (table.outcome == OUTCOME)].itertuples()
    ]
    model, algorithm = table.model.iloc[0], table.algorithm.iloc[0]
    print_table(
        f"{model}, {algorithm}: reward over the run, differences paired by seed (± is a 95 % interval)",
        ("regime", "contrast", "seeds", "difference", "p sign-flip", "margin", "p equivalence", "verdict"),
        rows,
        f"{agreement(table[table.metric == REWARD], efficiency)} Paper: {paper.ABLATION}.",
    )
    _show_efficiency(efficiency)


def at_rates(rates: str) -> str:
    """What to add to a contrast's name for a choice of learning rates."""
    if rates == "best":
        return ", each at its best rate"
    return "" if rates == "same" else f", both at rate {rates}"


def _p(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def at_same_rate(table: pd.DataFrame) -> pd.DataFrame:
    """The contrasts with JAGG at the main learning rate, over the run."""
    return table[(table.outcome == OUTCOME) & (table.rates == "same") & (table["second"] == "jagg")]


def agreement(table: pd.DataFrame, efficiency: pd.DataFrame) -> str:
    """Whether the endpoints-only readings came out as reported, where the baseline learned."""
    rows = at_same_rate(table)
    rows = rows[rows["first"].str.startswith("endpoints")]
    exact = efficiency[efficiency.arm == BASELINE].groupby("regime").rise.apply(learning)
    verdicts = rows[rows.regime.map(exact) >= LEARNED].verdict
    if verdicts.empty:
        return "There is no regime yet in which the baseline was seen to learn, to compare that with."
    counts = {kind: int(verdicts.str.startswith(kind).sum()) for kind in VERDICTS}
    lower, total = counts["lower"], len(verdicts)
    if lower == total:
        verdict = "this agrees"
    elif counts["equal"] or counts["higher"]:
        verdict = "not consistently worse here"
    elif lower:
        verdict = "shown for some, refuted for none"
    else:
        verdict = "neither shown nor refuted here"
    found = listed([f"{count} {VERDICTS[kind]}" for kind, count in counts.items() if count])
    return (
        f"Ours, each reading in each regime against JAGG, over the run: {found}, of {total} in all; "
        f"{verdict}."
    )


def _show_efficiency(table: pd.DataFrame) -> None:
    rows = [(regime, *row) for regime in REGIMES for row in efficiency_rows(table[table.regime == regime])]
    print_table(
        "What a rise in reward cost",
        ("regime", *EFFICIENCY),
        rows,
        "Passes are of one image at one step; forwards are all of them, priced by the cost model.",
    )


def efficiency_rows(runs: pd.DataFrame) -> list[tuple[object, ...]]:
    """Of one regime's runs, a row per arm under the headings `EFFICIENCY`."""
    rows: list[tuple[object, ...]] = []
    for arm in [arm for arm in ARMS if arm in set(runs.arm)]:
        of_arm = runs[runs.arm == arm]
        costs = (_three_digits(rise_per(of_arm, column)) for column in COSTS)
        rows.append((ARMS[arm].label, len(of_arm), signed(*mean_and_half(of_arm.rise)), *costs))
    return rows


def rise_per(runs: pd.DataFrame, column: str) -> pd.Series:
    """The rises for as much of a cost as `COSTS` says."""
    return runs.rise / runs[column] * COSTS[column]


def _three_digits(values: pd.Series) -> str:
    mean, half = mean_and_half(values)
    return f"{mean:+.3g}" + ("" if math.isnan(half) else f"±{half:.2g}")


def plot(csv: Path) -> Path:
    """Redraw ``ablation.png`` beside the CSV: contrasts with intervals and margins, and reward per second."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    table, efficiency = read(csv), at_main_rate(read(csv.with_name("ablation-efficiency.csv")))
    table = table[(table.metric == REWARD) & (table.outcome == OUTCOME) & (table.rates == "same")]
    regimes = [name for name in REGIMES if name in set(table.regime)]
    theme()
    figure, axes = plt.subplots(
        len(regimes), 2, figsize=(12, 3.2 * len(regimes) + 0.6), constrained_layout=True, squeeze=False
    )
    for row, regime in zip(axes, regimes, strict=True):
        _contrast_panel(row[0], table[table.regime == regime], REGIMES[regime].label)
        _efficiency_panel(row[1], efficiency[efficiency.regime == regime])
    figure.suptitle(f"Paper: {paper.ABLATION.what} is {paper.ABLATION}. Measured here:", fontsize=10)
    target = csv.with_suffix(".png")
    return save(figure, target)


def _contrast_panel(axis, rows: pd.DataFrame, title: str) -> None:
    places = np.arange(len(rows))[::-1]
    axis.errorbar(rows.difference, places, xerr=rows.half_interval, fmt="o", markersize=4, capsize=3)
    for place, margin in zip(places, rows.margin, strict=True):
        axis.fill_betweenx([place - 0.3, place + 0.3], -margin, margin, color="0.6", alpha=0.3, linewidth=0)
    axis.axvline(0, color="0.3", linewidth=0.8)
    labels = [
        f"{ARMS[first].label}\nminus {ARMS[second].label}"
        for first, second in zip(rows["first"], rows["second"], strict=True)
    ]
    axis.set_yticks(places, labels, fontsize=7)
    axis.set(xlabel="difference in reward over the run (grey: the margin of equality)", title=title)


def _efficiency_panel(axis, rows: pd.DataFrame) -> None:
    arms = [arm for arm in ARMS if arm in set(rows.arm)]
    for place, arm in enumerate(reversed(arms)):
        runs = rows[rows.arm == arm]
        mean, half = mean_and_half(rise_per(runs, "seconds"))
        axis.errorbar(
            mean, place, xerr=half, fmt="s", markersize=4, capsize=3, color=f"C{list(ARMS).index(arm)}"
        )
    axis.set_yticks(range(len(arms)), [ARMS[arm].label for arm in reversed(arms)], fontsize=7)
    axis.axvline(0, color="0.3", linewidth=0.8)
    axis.set(xlabel="rise in reward per 1000 seconds of training", title="reward per second")
