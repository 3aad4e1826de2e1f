"""The ablation's figures, of the training reward's contrasts in per cent of exact's rise.

``ablation.png`` has the message: every contrast over the run, in the comfortable regime.
``ablation-more.png`` has the end of the run, the other regimes and learning rates, and what a rise cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.ablation.analysis import MAIN, judged, learned_in, rise_per, spending
from experiments.ablation.report import at_rates, shown
from experiments.common.figures import save
from experiments.common.intervals import FEWEST, Verdict, mean_and_half
from experiments.convergence.arms import ALGORITHMS, ARMS, REGIMES
from experiments.convergence.figure import GRID

COLOURS = {
    Verdict.EQUAL: "#0072B2",
    Verdict.HIGHER: "#009E73",
    Verdict.LOWER: "#D55E00",
    Verdict.UNDECIDED: "#777777",
}
NAMES = {"exact": "exact", "jagg": "JAGG"}
"""Of the arms that others are compared with."""
WIDEST = 150
"""Per cent at either side, at most; longer intervals leave the picture."""


def plot(csv: Path) -> Path:
    """Redraw ``ablation.png`` beside the CSV, which is returned, and ``ablation-more.png``."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    table, runs = judged(csv), spending(csv)
    regimes = [name for name in REGIMES if name in set(table.regime)]
    is_main = (table.regime == regimes[0]) & (table.rates == "same")
    name = f"{table.model.iloc[0]}, {ALGORITHMS[table.algorithm.iloc[0]]}"
    with plt.rc_context(GRID):
        main = table[is_main & (table.outcome == MAIN)]
        figure, axis = plt.subplots(figsize=(8.6, 0.42 * len(main) + 1.2), constrained_layout=True)
        _contrasts(axis, main)
        figure.suptitle(f"What is interpolating worth? {name}, reward over the run", fontsize=11)
        contrasts = {"at the end of the run": table[is_main & (table.outcome == "final")]}
        others = table[~is_main & (table.outcome == MAIN) & (table.seeds >= FEWEST) & shown(table)]
        if len(others):
            contrasts["other regimes and learning rates, over the run"] = others
        # What a rise cost says nothing where there is none.
        priced = runs[(runs.regime == regimes[0]) & runs.regime.map(learned_in(csv))]
        more = _more(contrasts, priced, name)
        save(more, csv.with_name(f"{csv.stem}-more.png"), dpi=100)
        return save(figure, csv.with_suffix(".png"), dpi=130)


def _contrasts(axis: Any, rows: pd.DataFrame, regimes: bool = False) -> None:
    """A line a contrast: its interval, the margin behind, and the verdict at the right."""
    places = np.arange(len(rows))[::-1]
    margin = 100 * (rows.margin / rows.rise).iloc[0]
    axis.axvspan(-margin, margin, color="0.88", linewidth=0)
    axis.axvline(0, color="0.3", linewidth=0.8)
    for place, (_, row) in zip(places, rows.iterrows(), strict=True):
        colour = COLOURS[row.judged]
        axis.errorbar(
            row.percent, place, xerr=row.percent_half, fmt="o", color=colour, markersize=4, capsize=3
        )
        words = f"{row.judged}, {row.seeds} seeds" + (", primary" if row.primary else "")
        axis.annotate(
            words,
            (1.02, place),
            xycoords=("axes fraction", "data"),
            color=colour,
            fontsize=8,
            va="center",
            annotation_clip=False,
        )
    labels = [
        f"{ARMS[row['first']].label} − {NAMES[row['second']]}{at_rates(row.rates)}"
        + (f" ({row.regime})" if regimes else "")
        for _, row in rows.iterrows()
    ]
    axis.set_yticks(places, labels, fontsize=8)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.grid(visible=False, axis="y")
    low, high = axis.get_xlim()
    axis.set_xlim(max(low, -WIDEST), min(high, WIDEST))
    axis.set_xlabel("difference in % of exact's rise, 95 % interval; grey: the margin of equality")


def _more(contrasts: dict[str, pd.DataFrame], runs: pd.DataFrame, name: str) -> Any:
    """Contrasts by their panel's title, and of one regime's runs what the rise of every arm cost."""
    import matplotlib.pyplot as plt

    arms = [arm for arm in ARMS if arm in set(runs.arm)]
    counts = [len(rows) for rows in contrasts.values()] + [len(arms)] * 2 * bool(arms)
    figure, axes = plt.subplots(
        len(counts),
        1,
        figsize=(10, 0.25 * sum(counts) + 1.1 * len(counts)),
        height_ratios=[count + 1 for count in counts],
        constrained_layout=True,
        squeeze=False,
    )
    for axis, (title, rows) in zip(axes.flat, contrasts.items(), strict=False):
        _contrasts(axis, rows, regimes=rows.regime.nunique() > 1)
        axis.set_title(title, loc="left")
    units = {"forwards": "10⁶ forwards", "seconds": "1000 seconds"} if arms else {}
    for axis, (column, unit) in zip(axes.flat[len(contrasts) :], units.items(), strict=True):
        for place, arm in enumerate(reversed(arms)):
            mean, half = mean_and_half(rise_per(runs[runs.arm == arm], column))
            axis.errorbar(mean, place, xerr=half, fmt="s", color="#0072B2", markersize=4, capsize=3)
        axis.set_yticks(range(len(arms)), [ARMS[arm].label for arm in reversed(arms)], fontsize=8)
        axis.axvline(0, color="0.3", linewidth=0.8)
        axis.set_title(f"rise in reward per {unit} of training", loc="left")
    figure.suptitle(f"{name}: the ablation's other numbers", fontsize=11)
    return figure
