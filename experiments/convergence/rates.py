"""Several learning rates in one convergence table, such as the sweep's: their figure.

The main figure and the tables compare arms at one rate; here every rate of every arm is shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.common.figures import save
from experiments.common.markdown import counted
from experiments.convergence.analysis import runs
from experiments.convergence.arms import ALGORITHMS, ARMS, REGIMES, REWARD


def plot(csv: Path, table: pd.DataFrame) -> None:
    """Redraw ``convergence-rates.png`` beside the CSV, from its complete runs; nothing with one rate only.

    A row a regime: the reward of its arm with most rates at each of them, and every arm's rise against the
    rate.
    """
    import matplotlib.pyplot as plt

    rewards = table[table.metric == REWARD]
    several = rewards.groupby("regime").lr_factor.nunique() > 1
    regimes = [name for name in REGIMES if several.get(name, False)]
    if not regimes:
        return
    figure, axes = plt.subplots(
        len(regimes), 2, figsize=(9, 3.1 * len(regimes) + 0.5), constrained_layout=True, squeeze=False
    )
    factors = sorted(rewards.lr_factor.unique())
    for row, regime in zip(axes, regimes, strict=True):
        here = rewards[rewards.regime == regime]
        counts = here.groupby("arm").lr_factor.nunique()
        arm = max((arm for arm in ARMS if arm in counts), key=lambda arm: counts[arm])
        _curves(row[0], here[here.arm == arm], factors)
        row[0].set_title(f"{REGIMES[regime].label}: {ARMS[arm].label}", fontsize=9)
        _rises(row[1], runs(here))
        row[1].set_xticks(factors, [f"×{factor:.3g}" for factor in factors])
    # Settings side by side: what hardly learned must not look like what did.
    for column in axes.T:
        low, high = (pick(axis.get_ylim()[i] for axis in column) for i, pick in ((0, min), (1, max)))
        for axis in column:
            axis.set_ylim(low, high)
    model, algorithm = table.model.iloc[0], table.algorithm.iloc[0]
    figure.suptitle(
        f"Learning rates, {model}, {ALGORITHMS[algorithm]}, thin lines and small dots are seeds",
        fontsize=11,
    )
    save(figure, csv.with_name("convergence-rates.png"))


def _curves(axis: Any, here: pd.DataFrame, factors: list[float]) -> None:
    """One arm's reward against the training step, the larger the rate the darker."""
    import matplotlib.pyplot as plt

    shades = dict(zip(factors, plt.get_cmap("viridis_r")(np.linspace(0.15, 1, len(factors))), strict=True))
    for factor, runs_at in here.groupby("lr_factor"):
        curves = runs_at.pivot(index="step", columns="seed", values="value")
        seeds = curves.shape[1]
        label = f"learning rate ×{factor:.3g}, {counted(seeds, 'seed')}"
        axis.plot(curves.index, curves, color=shades[factor], linewidth=0.6, alpha=0.45)
        axis.plot(curves.index, curves.mean(axis=1), color=shades[factor], label=label, linewidth=1.6)
    axis.set(xlabel="training step", ylabel="reward, evaluation prompts")
    axis.legend(fontsize=6.5)


def _rises(axis: Any, outcomes: pd.DataFrame) -> None:
    """Every arm's rise at the end against the rate."""
    arms = [arm for arm in ARMS if arm in set(outcomes.arm)]
    for place, arm in enumerate(arms):
        of_arm = outcomes[outcomes.arm == arm]
        style = {"color": f"C{list(ARMS).index(arm)}"}
        # Beside each other: several arms' seeds at one rate would hide each other.
        beside = 1.04 ** (place - (len(arms) - 1) / 2)
        axis.plot(of_arm.lr_factor * beside, of_arm["final"], ".", markersize=4, alpha=0.5, **style)
        means = of_arm.groupby("lr_factor")["final"].mean()
        axis.plot(means.index * beside, means, "o-", label=ARMS[arm].label, markersize=5, **style)
    axis.axhline(0, color="0.3", linewidth=0.8)
    axis.set_xscale("log")
    axis.minorticks_off()
    axis.set(xlabel="learning rate, times the recipe's", ylabel="rise in reward at the end")
    axis.legend(fontsize=6.5)
