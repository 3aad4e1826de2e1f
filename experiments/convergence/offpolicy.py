"""Several updates per rollout read back: how far the policy moves from the one that sampled, at what cost.

Later updates of a rollout are off-policy: importance ratios leave 1, the clip begins to act, and the
rollout's velocities are stale. They are forwarded again, without gradient, or corrected from the anchors. All
this is in ``convergence-training.csv``, of regimes in which a training step makes several updates.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.common.figures import save
from experiments.convergence.analysis import at_main_rate
from experiments.convergence.arms import ARMS, REGIMES
from repro.console import print_table
from repro.results import read

PANELS = {
    "ratio_deviation": "largest |ratio - 1|",
    "clip_fraction": "share clipped",
    "extra_forwards": "forwards without gradient, per backward",
}


def load(csv: Path) -> pd.DataFrame:
    """Training steps of several updates, faults left out, beside the table of evaluations ``csv``."""
    table = read(csv.with_name("convergence-training.csv"))
    table = at_main_rate(table[(table.updates > 1) & table.fault.isna()])
    return table.assign(extra_forwards=(table.forwards - table.backwards) / table.backwards)


def show(csv: Path) -> None:
    """Print them by regime and arm; nothing if there are none."""
    table = load(csv)
    if table.empty:
        return
    rows = [
        (
            regime,
            ARMS[arm].label,
            of_arm.seed.nunique(),
            float(of_arm.ratio_deviation.median()),
            float(of_arm.ratio_deviation.max()),
            float(of_arm.clip_fraction.mean()),
            float(of_arm.extra_forwards.mean()),
        )
        for (regime, arm), of_arm in table.groupby(["regime", "arm"], sort=False)
    ]
    print_table(
        "Several updates per rollout: how far off-policy they are",
        ("regime", "arm", "seeds", "|ratio - 1|, median", "largest", *list(PANELS.values())[1:]),
        rows,
        "|ratio - 1| is a training step's largest, over its updates, steps and images. Stale velocities that "
        "are corrected, not recomputed, need no forwards without gradient.",
    )


def sentence(csv: Path, regime: str) -> str:
    """The same of one regime, for README; empty where every rollout has one update."""
    table = load(csv)
    table = table[table.regime == regime]
    found = [
        f"{ARMS[arm].label}: |ratio - 1| reached {of_arm.ratio_deviation.max():.2g}, "
        f"{100 * of_arm.clip_fraction.mean():.0f} % were clipped, a backward took "
        f"{of_arm.extra_forwards.mean():.2g} forwards without gradient besides its own"
        for arm, of_arm in table.groupby("arm", sort=False)
    ]
    if not found:
        return ""
    return (
        "How far off-policy the updates were (shares are of all updates, each rollout's first one, which is "
        "on-policy, among them): "
        f"{'; '.join(found)}."
    )


def plot(csv: Path) -> None:
    """Redraw ``convergence-offpolicy.png`` beside the CSV; nothing if there is nothing to draw."""
    import matplotlib.pyplot as plt

    table = load(csv)
    if table.empty:
        return
    regimes = [name for name in REGIMES if name in set(table.regime)]
    figure, axes = plt.subplots(
        len(regimes), len(PANELS), figsize=(13, 3.2 * len(regimes)), constrained_layout=True, squeeze=False
    )
    for row, regime in zip(axes, regimes, strict=True):
        here = table[table.regime == regime]
        for axis, (column, name) in zip(row, PANELS.items(), strict=True):
            for number, (arm, what) in enumerate(ARMS.items()):
                curve = here[here.arm == arm].groupby("step")[column].mean()
                if len(curve):
                    axis.plot(curve.index, curve, color=f"C{number}", label=what.label, linewidth=1.3)
            axis.set(xlabel="training step", ylabel=name)
        row[0].set_yscale("log")
        row[1].set_title(REGIMES[regime].label, fontsize=9)
        row[2].legend(fontsize=6.5)
    save(figure, csv.with_name("convergence-offpolicy.png"))
