"""The convergence tables read back: the printed comparison with the exact baseline, and the figures.

Everything is computed from the CSVs alone, from runs that are complete. Intervals are 95 % t intervals over
training seeds; differences are paired by seed.
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

import pandas as pd

from experiments import paper
from experiments.common.figures import save
from experiments.common.intervals import FEWEST, mean_and_half
from experiments.common.markdown import listed, signed
from experiments.convergence import offpolicy as offpolicy_report
from experiments.convergence import rates as convergence_rates
from experiments.convergence.analysis import (
    RUN,
    at_main_rate,
    at_steps,
    complete,
    differences,
    main_rate,
    runs,
    spent,
    totals,
)
from experiments.convergence.arms import ALGORITHMS, ARMS, DIVERSITY, REGIMES, REWARD, described
from repro.console import print_table
from repro.rewards import SCORERS

BASELINE = "exact"
LEARNED = 3
"""The least ratio of a mean rise to its seeds' spread that counts as learning, set beforehand."""


def show(csv: Path) -> None:
    """Print, per regime, how far every arm rose, its difference from the exact one, and what it cost."""
    table, spending = complete(csv), spent(csv)
    outcomes = runs(table)
    for regime in [name for name in REGIMES if name in set(outcomes.regime)]:
        here = outcomes[outcomes.regime == regime]
        _show_regime(table, here, spending, regime)
    offpolicy_report.show(csv)


def _show_regime(table: pd.DataFrame, here: pd.DataFrame, spending: pd.DataFrame, regime: str) -> None:
    metrics = [m for m in table.metric.unique() if m != REWARD]
    total = totals(here, spending)
    rows = []
    for arm, factor in choices(here):
        of_arm = here[(here.arm == arm) & (here.lr_factor == factor)]
        rises = of_arm.set_index("metric")["final"]
        against = differences(here[here.metric == REWARD], (arm, factor), (BASELINE, factor), "final")
        cost = total.loc[(arm, factor)]
        rows.append(
            (
                ARMS[arm].label + ("" if factor == 1 else f", lr x{factor:.3g}"),
                of_arm.seed.nunique(),
                signed(*mean_and_half(rises[[REWARD]])),
                f"{learning(rises[[REWARD]]):.1f}" if of_arm.seed.nunique() >= FEWEST else "-",
                "-" if arm == BASELINE or against.empty else signed(*mean_and_half(against)),
                *(signed(*mean_and_half(rises[[m]])) for m in metrics),
                f"{cost.seconds:.0f}",
                f"{cost.cost:,.0f}",
            )
        )
    model, algorithm = table.model.iloc[0], table.algorithm.iloc[0]
    print_table(
        f"{model}, {algorithm}, {regime}: rise on evaluation prompts (± is a 95 % interval over seeds)",
        ("arm", "seeds", REWARD, "/ spread", "minus exact", *map(short, metrics), "seconds", "forwards"),
        rows,
        " ".join((learning_sentence(here), hacking_sentence(here), f"Paper: {paper.QUALITY}.")),
    )


def choices(outcomes: pd.DataFrame) -> list[tuple]:
    """(arm, lr_factor) in the order of ARMS."""
    there = set(zip(outcomes.arm, outcomes.lr_factor, strict=True))
    return sorted(there, key=lambda choice: (list(ARMS).index(choice[0]), choice[1]))


def of_baseline(here: pd.DataFrame) -> pd.DataFrame:
    """The exact baseline's runs at the regime's main learning rate, of one regime's outcomes."""
    return here[(here.arm == BASELINE) & (here.lr_factor == main_rate(here))]


def learning(rises: pd.Series) -> float:
    """How many times the seeds' standard deviation their mean rise is; nan for too few seeds to tell."""
    if len(rises) < FEWEST:
        return math.nan
    spread = rises.std(ddof=1)
    return float(rises.mean() / spread) if spread else math.copysign(math.inf, rises.mean())


def learning_sentence(here: pd.DataFrame) -> str:
    """Whether the exact baseline visibly learned: by how many times the spread of its seeds it rose."""
    exact = of_baseline(here)
    rises = exact[exact.metric == REWARD]["final"]
    if len(rises) < FEWEST:
        return f"Whether the exact baseline learned beyond its seeds' spread needs {FEWEST} seeds or more."
    mean, ratio = rises.mean(), learning(rises)
    verdict = "it learned" if ratio >= LEARNED else "it did not visibly learn, too little to tell arms apart"
    return (
        f"The exact baseline's reward {'rose' if mean > 0 else 'fell'} by {abs(mean):.4f}, {abs(ratio):.1f} "
        f"times its seeds' spread: {verdict} ({LEARNED} is the bar set beforehand)."
    )


def hacking_sentence(here: pd.DataFrame) -> str:
    """Whether what the exact baseline was not trained on rose with its reward."""
    exact = of_baseline(here)
    if exact.seed.nunique() < FEWEST:
        return f"Whether it hacked its reward needs {FEWEST} seeds or more."
    changed = {}
    for metric, rows in exact.groupby("metric", sort=False):
        mean, half = mean_and_half(rows["final"])
        if abs(mean) > half:
            changed[str(metric)] = mean
    reward = changed.pop(REWARD, 0.0)
    if not changed:
        return "Nothing it was not trained on changed beyond its interval."
    found = [f"{short(m)} {'rose' if mean > 0 else 'fell'} ({mean:+.4f})" for m, mean in changed.items()]
    text = f"Beside it, beyond their intervals: {', '.join(found)}"
    # Diversity is no measure of quality: it says how the reward was gained.
    fell = [short(metric) for metric, mean in changed.items() if mean < 0 and metric != DIVERSITY]
    rose = [short(metric) for metric, mean in changed.items() if mean > 0 and metric != DIVERSITY]
    if reward > 0 and fell:
        text += f"; a reward that rises while {listed(fell)} fall{'s' * (len(fell) == 1)} is being hacked"
    elif reward > 0 and rose:
        text += "; no sign of reward hacking"
    return text + "."


def short(metric: str) -> str:
    """A scorer's kind, for headings: "pickscore" of "pickscore:tiny-pickscore"."""
    return metric.split(":")[0] if metric.split(":")[0] in SCORERS else metric


def plot(csv: Path) -> Path:
    """Redraw ``convergence.png`` beside the CSV, at every regime's main learning rate.

    Besides, where there are several rates, ``convergence-rates.png``; where pictures were kept,
    ``convergence-samples.png``; where rollouts had several updates, ``convergence-offpolicy.png``.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    complete_runs, spending = complete(csv), spent(csv)
    table = at_main_rate(complete_runs)
    regimes = [name for name in REGIMES if name in set(table.regime)]
    theme()
    figure, axes = plt.subplots(
        len(regimes), 4, figsize=(16, 3.6 * len(regimes) + 1), constrained_layout=True, squeeze=False
    )
    for row, regime in zip(axes, regimes, strict=True):
        here = table[table.regime == regime]
        reward = here[here.metric == REWARD]
        factor = here.lr_factor.iloc[0]
        title = textwrap.fill(described(regime, factor), 50)
        _curves(row[0], curve_points(reward, spending, "step"))
        row[0].set(xlabel="training step", ylabel="reward, evaluation prompts", title=title)
        _curves(row[1], curve_points(reward, spending, "seconds"))
        row[1].set(xlabel="seconds of training (mean over seeds)", title="the same against wall-clock")
        _others(row[2], here)
        _curves(row[3], curve_points(here[here.metric == DIVERSITY], spending, "step"))
        row[3].set(xlabel="training step", title="diversity within a prompt (1 - cosine)")
    # One legend for all panels, outside them: ten arms would cover the curves.
    lines = {line.get_label(): line for axis in axes[:, 0] for line in axis.lines}
    order = [what.label for what in ARMS.values() if what.label in lines]
    figure.legend([lines[o] for o in order], order, loc="outside lower center", ncols=5, fontsize=8)
    model, algorithm = table.model.iloc[0], table.algorithm.iloc[0]
    figure.suptitle(
        f"{model}, {ALGORITHMS[algorithm]}, measured here; bands are 95 % intervals over seeds. Arms of "
        "fewer seeds are placed by their difference from exact on these.\n"
        f"Paper, JAGG against exact: {paper.QUALITY}",
        fontsize=11,
    )
    target = csv.with_suffix(".png")
    save(figure, target, dpi=110)
    convergence_rates.plot(csv, complete_runs)
    _plot_samples(csv, table, plt)
    offpolicy_report.plot(csv)
    return target


def curve_points(here: pd.DataFrame, spending: pd.DataFrame, x: str) -> pd.DataFrame:
    """Arm, step, x and the seeds' mean and half interval; x is averaged over an arm's seeds.

    An arm of fewer seeds than the baseline's is put where it would be if all of the baseline's seeds had its
    difference, and has no interval: seeds differ as much as arms do.
    """
    baseline = here[here.arm == BASELINE].set_index(["step", "seed"])["value"]
    if x != "step":
        here = here.merge(at_steps(spending, here.step.unique()), on=[*RUN, "step"])
    rows = []
    for (arm, step), points in here.groupby(["arm", "step"]):
        mean, half = mean_and_half(points.value)
        same = [(step, seed) for seed in points.seed]
        if len(same) < len(baseline.get(step, [])) and set(same) <= set(baseline.index):
            mean, half = mean + baseline[step].mean() - baseline[same].mean(), math.nan
        rows.append((arm, points[x].mean() if x != "step" else step, mean, half))
    return pd.DataFrame(rows, columns=["arm", "x", "mean", "half"])


def theme() -> None:
    """Figures in which every arm has a colour of its own, in the order of `ARMS`."""
    import seaborn as sns

    palette = [*sns.color_palette("colorblind"), "black"]  # which has ten
    sns.set_theme(style="whitegrid", context="paper", palette=palette)


def _curves(axis, points: pd.DataFrame) -> None:
    """One line an arm, in its own colour whichever arms are there, with the interval as a band."""
    for number, (arm, what) in enumerate(ARMS.items()):
        curve = points[points.arm == arm]
        if curve.empty:
            continue
        dashes = "-" if what.claim else "--"
        style = {"color": f"C{number}", "label": what.label, "linewidth": 1.3}
        axis.plot(curve.x, curve["mean"], dashes, **style)
        if what.claim:  # the others' few seeds give wide bands that would cover everything
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
        shown = of_metric[of_metric.arm.isin([BASELINE, "jagg"])]
        scale = shown["value"].abs().max() or 1.0
        for arm, dashes in ((BASELINE, "-"), ("jagg", "--")):
            curve = shown[shown.arm == arm].groupby("step")["value"].mean()
            axis.plot(curve.index, curve / scale, dashes, color=f"C{number}", linewidth=1.3)
        axis.plot([], [], color=f"C{number}", label=f"{short(metric)} (full scale {scale:.3g})")
    axis.set(xlabel="training step", ylabel="rise, own scale")
    axis.set_title("not trained on: exact solid, JAGG dashed")
    if metrics:
        axis.legend(fontsize=6.5)


def _plot_samples(csv: Path, table: pd.DataFrame, plt) -> None:
    """Before and after, the same prompts and noise, of the first seed; a row an arm of the first regime."""
    folder = csv.parent / "samples"
    regime = next(name for name in REGIMES if name in set(table.regime))
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
    save(figure, csv.with_name("convergence-samples.png"), dpi=75, pictures=True)
