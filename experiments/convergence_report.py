"""The convergence tables read back: the printed comparison with the exact baseline, and the figures.

Everything is computed from the CSVs alone, from runs that are complete. Intervals are 95 % t intervals over
training seeds; differences are paired by seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from experiments import offpolicy_report, paper
from experiments.cells import ARMS, SETTINGS
from experiments.convergence_data import RUN, at_steps, complete, differences, runs, spent
from experiments.evaluation import DIVERSITY, REWARD
from experiments.paired import mean_and_half
from repro.console import print_table

BASELINE = "exact"


def show(csv: Path) -> None:
    """Print, per setting, how far every arm rose, its difference from the exact one, and what it cost."""
    table, spending = complete(csv), spent(csv)
    outcomes = runs(table)
    for setting in [name for name in SETTINGS if name in set(outcomes.setting)]:
        here = outcomes[outcomes.setting == setting]
        _show_setting(table, here, spending[spending.setting == setting], setting)
    offpolicy_report.show(csv)


def _show_setting(table: pd.DataFrame, here: pd.DataFrame, spending: pd.DataFrame, setting: str) -> None:
    metrics = [m for m in table.metric.unique() if m != REWARD]
    total = spending.groupby(["arm", "lr_factor", "seed"])[["seconds", "cost"]].max()
    total = total.groupby(["arm", "lr_factor"]).mean()
    rows = []
    for arm, factor in _choices(here):
        of_arm = here[(here.arm == arm) & (here.lr_factor == factor)]
        rises = of_arm.set_index("metric")["final"]
        against = differences(here[here.metric == REWARD], (arm, factor), (BASELINE, factor), "final")
        cost = total.loc[(arm, factor)]
        rows.append(
            (
                ARMS[arm].label + ("" if factor == 1 else f", lr x{factor:g}"),
                of_arm.seed.nunique(),
                _text(*mean_and_half(rises[[REWARD]])),
                _over_spread(rises[[REWARD]]),
                "-" if arm == BASELINE or against.empty else _text(*mean_and_half(against)),
                *(_text(*mean_and_half(rises[[m]])) for m in metrics),
                f"{cost.seconds:.0f}",
                f"{cost.cost:,.0f}",
            )
        )
    model, algorithm = table.model.iloc[0], table.algorithm.iloc[0]
    print_table(
        f"{model}, {algorithm}, {setting}: rise on evaluation prompts (± is a 95 % interval over seeds)",
        ("arm", "seeds", REWARD, "/ spread", "minus exact", *metrics, "seconds", "forwards"),
        rows,
        " ".join((learning_sentence(here), hacking_sentence(here), f"Paper: {paper.QUALITY}.")),
    )


def _choices(outcomes: pd.DataFrame) -> list[tuple]:
    """(arm, lr_factor) in the order of ARMS."""
    there = set(zip(outcomes.arm, outcomes.lr_factor, strict=True))
    return sorted(there, key=lambda choice: (list(ARMS).index(choice[0]), choice[1]))


def _text(value: float, half: float) -> str:
    return f"{value:+.4f}" + ("" if np.isnan(half) else f" ± {half:.4f}")


def _over_spread(rises: pd.Series) -> str:
    """How often the mean holds the seeds' standard deviation: from 3 on, learning is visible."""
    return f"{rises.mean() / rises.std(ddof=1):.1f}" if len(rises) > 1 else "-"


def learning_sentence(here: pd.DataFrame) -> str:
    """Whether the exact baseline visibly learned: by how many times the spread of its seeds it rose."""
    rises = here[(here.arm == BASELINE) & (here.lr_factor == 1) & (here.metric == REWARD)]["final"]
    if len(rises) < 2:
        return "Whether the exact baseline learned beyond its seeds' spread needs two seeds or more."
    ratio = rises.mean() / rises.std(ddof=1)
    verdict = "it learned" if ratio >= 3 else "too little to tell arms apart (3 is the bar set beforehand)"
    return (
        f"The exact baseline's reward rose by {rises.mean():+.4f}, {ratio:.1f} times its seeds' spread: "
        f"{verdict}."
    )


def hacking_sentence(here: pd.DataFrame) -> str:
    """Whether what the exact baseline was not trained on rose with its reward."""
    exact = here[(here.arm == BASELINE) & (here.lr_factor == 1)]
    if exact.seed.nunique() < 2:
        return "Whether it hacked its reward needs two seeds or more."
    found = []
    for metric, rows in exact.groupby("metric", sort=False):
        mean, half = mean_and_half(rows["final"])
        if metric != REWARD and abs(mean) > half:
            found.append(f"{metric} {'rose' if mean > 0 else 'fell'} ({mean:+.4f})")
    if not found:
        return "Nothing it was not trained on changed beyond its interval."
    return "Beside it, beyond their intervals: " + ", ".join(found) + "."


def plot(csv: Path) -> Path:
    """Redraw ``convergence.png`` beside the CSV, ``convergence-samples.png`` where pictures were kept, and
    ``convergence-offpolicy.png`` where rollouts had several updates.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    table, spending = complete(csv), spent(csv)
    settings = [name for name in SETTINGS if name in set(table.setting)]
    sns.set_theme(style="whitegrid", context="paper", palette="colorblind")
    figure, axes = plt.subplots(
        len(settings), 4, figsize=(16, 3.9 * len(settings)), constrained_layout=True, squeeze=False
    )
    for row, setting in zip(axes, settings, strict=True):
        here = table[(table.setting == setting) & (table.lr_factor == 1)]
        by_cost = spending[(spending.setting == setting) & (spending.lr_factor == 1)]
        _curves(row[0], _with_x(here[here.metric == REWARD], by_cost, "step"))
        row[0].set(xlabel="training step", ylabel="reward, evaluation prompts", title=SETTINGS[setting].label)
        _curves(row[1], _with_x(here[here.metric == REWARD], by_cost, "seconds"))
        row[1].set(xlabel="seconds of training (mean over seeds)", title="the same against wall-clock")
        _others(row[2], here)
        _curves(row[3], _with_x(here[here.metric == DIVERSITY], by_cost, "step"))
        row[3].set(xlabel="training step", title="diversity within a prompt (1 - cosine)")
        row[0].legend(fontsize=6.5)
    model, algorithm = table.model.iloc[0], table.algorithm.iloc[0]
    figure.suptitle(
        f"{model}, {algorithm}, measured here; bands are 95 % intervals over seeds.\n"
        f"Paper, JAGG against exact: {paper.QUALITY}",
        fontsize=11,
    )
    target = csv.with_suffix(".png")
    figure.savefig(target, dpi=150, metadata={"Software": None})
    plt.close(figure)
    _plot_samples(csv, plt)
    offpolicy_report.plot(csv)
    return target


def _with_x(here: pd.DataFrame, spending: pd.DataFrame, x: str) -> pd.DataFrame:
    """Arm, step, x and the seeds' mean and half interval; x is averaged over an arm's seeds."""
    if x != "step":
        here = here.merge(at_steps(spending, here.step.unique()), on=[*RUN, "step"])
    rows = []
    for (arm, step), points in here.groupby(["arm", "step"]):
        mean, half = mean_and_half(points.value)
        rows.append((arm, points[x].mean() if x != "step" else step, mean, half))
    return pd.DataFrame(rows, columns=["arm", "x", "mean", "half"])


def _curves(axis, points: pd.DataFrame) -> None:
    """One line an arm, in its own colour whichever arms are there, with the interval as a band."""
    for number, (arm, what) in enumerate(ARMS.items()):
        curve = points[points.arm == arm]
        if curve.empty:
            continue
        dashes = "-" if what.claim else "--"
        style = {"color": f"C{number}", "label": what.label, "linewidth": 1.3}
        axis.plot(curve.x, curve["mean"], dashes, **style)
        low, high = curve["mean"] - curve.half, curve["mean"] + curve.half
        axis.fill_between(curve.x, low, high, color=f"C{number}", alpha=0.12, linewidth=0)


def _others(axis, here: pd.DataFrame) -> None:
    """What the policy was not trained on: rise over the start, exact solid, JAGG dashed."""
    metrics = [m for m in here.metric.unique() if m not in (REWARD, DIVERSITY)]
    for number, metric in enumerate(metrics):
        of_metric = here[here.metric == metric].copy()
        start = of_metric[of_metric.step == 0].set_index(["arm", "seed"])["value"]
        of_metric["value"] -= start.reindex(pd.MultiIndex.from_frame(of_metric[["arm", "seed"]])).to_numpy()
        # Scorers have scales of their own (PickScore's is about 100 times a cosine's).
        scale = of_metric[of_metric.arm == BASELINE]["value"].abs().max() or 1.0
        for arm, dashes in ((BASELINE, "-"), ("jagg", "--")):
            curve = of_metric[of_metric.arm == arm].groupby("step")["value"].mean()
            label = f"{metric} (full scale {scale:.3g})" if arm == BASELINE else None
            axis.plot(curve.index, curve / scale, dashes, color=f"C{number}", label=label, linewidth=1.3)
    axis.set(xlabel="training step", ylabel="rise, own scale")
    axis.set_title("not trained on: exact solid, JAGG dashed")
    if metrics:
        axis.legend(fontsize=6.5)


def _plot_samples(csv: Path, plt) -> None:
    """Before and after, the same prompts and noise, of the first seed; a row an arm."""
    folder = csv.parent / "samples"
    strips = [("before", path) for path in sorted(folder.glob("comfortable-*-step0.png"))[:1]]
    for arm, what in ARMS.items():
        after = sorted(folder.glob(f"comfortable-{arm}-lr1-seed*-step[1-9]*.png"))
        strips += [(what.label, path) for path in after[:1]]
    if len(strips) < 2:
        return
    figure, axes = plt.subplots(len(strips), 1, figsize=(8, 1.15 * len(strips)), constrained_layout=True)
    for axis, (name, path) in zip(axes, strips, strict=True):
        axis.imshow(plt.imread(path))
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
    figure.savefig(csv.with_name("convergence-samples.png"), dpi=150, metadata={"Software": None})
    plt.close(figure)
