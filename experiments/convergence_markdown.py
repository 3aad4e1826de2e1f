"""Convergence tables as Markdown, for README: per setting a table of arms, and what it says of the paper.

Everything is computed from the CSVs alone. Arms are compared at the setting's main learning rate; the sweep
of the exact baseline over noise level and learning rate (`experiments.cells`) has a table of its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from experiments import paper
from experiments.cells import ALGORITHMS, ARMS, SETTINGS, ArmName
from experiments.convergence_data import (
    at_main_rate,
    complete,
    config_of,
    differences,
    main_rate,
    runs,
    spent,
    totals,
)
from experiments.convergence_report import (
    BASELINE,
    LEARNED,
    choices,
    hacking_sentence,
    learning,
    learning_sentence,
    of_baseline,
    short,
)
from experiments.evaluation import REWARD
from experiments.markdown import listed, signed
from experiments.markdown import table as markdown_table
from experiments.paired import LEVEL, MARGIN, Comparison, compare, mean_and_half

JAGGS: tuple[ArmName, ...] = ("jagg", "routed")
"""The arms that the paper's statement is about: the method on all groups, and as it was used."""


def markdown(csv: Path) -> str:
    """Tables and sentences of every setting with complete runs."""
    table, spending = complete(csv), spent(csv)
    outcomes = at_main_rate(runs(table))
    parts = []
    for setting in [name for name in SETTINGS if name in set(outcomes.setting)]:
        here = outcomes[outcomes.setting == setting]
        rate, steps = main_rate(here), table[table.setting == setting].step.max()
        heading = (
            f"**{table.model.iloc[0]}, {ALGORITHMS[table.algorithm.iloc[0]]}, {setting}** "
            f"({SETTINGS[setting].label}{'' if rate == 1 else f'; learning rate ×{rate:.3g}'}): "
            f"rise on evaluation prompts in {steps} training steps"
        )
        parts += [f"{heading}:", _table(here, spending), _sentences(here)]
    return "\n\n".join(parts)


def _table(here: pd.DataFrame, spending: pd.DataFrame) -> str:
    metrics = [str(m) for m in here.metric.unique() if m != REWARD]
    cost = totals(here, spending)
    rows = []
    for arm, factor in choices(here):
        rises = here[here.arm == arm].set_index("metric")["final"]
        against = differences(here[here.metric == REWARD], (arm, factor), (BASELINE, factor), "final")
        total = cost.loc[(arm, factor)]
        rows.append(
            (
                ARMS[arm].label,
                here[here.arm == arm].seed.nunique(),
                signed(*mean_and_half(rises[[REWARD]])),
                "-" if arm == BASELINE else signed(*mean_and_half(against)),
                *(signed(*mean_and_half(rises[[m]])) for m in metrics),
                f"{total.seconds:,.0f}",
                f"{total.cost:,.0f}",
            )
        )
    headings = ("arm", "seeds", REWARD, "minus exact", *map(short, metrics), "seconds", "forwards")
    return markdown_table(headings, rows)


def _sentences(here: pd.DataFrame) -> str:
    text = f"{learning_sentence(here)} {hacking_sentence(here)}"
    if jaggs := [arm for arm in JAGGS if arm in set(here.arm)]:
        against = " ".join(following_sentence(here, arm) for arm in jaggs)
        text += f'\n\nReported of JAGG: "{paper.QUALITY.text}". {against}'
    return text


def against_exact(here: pd.DataFrame, arm: ArmName, outcome: str) -> Comparison | None:
    """Of an arm's reward with the exact baseline's, within `MARGIN` of its rise; None without two seeds of
    both, or where the baseline did not rise.
    """
    reward, rate = here[here.metric == REWARD], main_rate(here)
    difference = differences(reward, (arm, rate), (BASELINE, rate), outcome)
    rises = of_baseline(here)[lambda rows: rows.metric == REWARD].set_index("seed")[outcome]
    margins = MARGIN * rises.reindex(difference.index)
    if len(difference) < 2 or margins.mean() <= 0:
        return None
    return compare(difference.to_numpy(), margins.to_numpy())


def following_sentence(here: pd.DataFrame, arm: ArmName) -> str:
    """An arm's reward against the exact baseline's, and whether that agrees with the paper's statement."""
    label = ARMS[arm].label
    end, curve = (against_exact(here, arm, outcome) for outcome in ("final", "curve"))
    if end is None or curve is None:
        return f"{label}: not to be judged without two seeds and a baseline that rose."
    found = (
        f"{label}, minus exact: {signed(end.mean, end.half)} at the end ({end.verdict}), "
        f"{signed(curve.mean, curve.half)} over the whole run ({curve.verdict}), the margin being "
        f"{100 * MARGIN:g} % of exact's own rise. This {_agreement(here, end, curve)}."
    )
    return " ".join([found, *_others(here, arm)])


def _agreement(here: pd.DataFrame, *comparisons: Comparison) -> str:
    exact = of_baseline(here)
    verdicts = [c.verdict for c in comparisons]
    if not learning(exact[exact.metric == REWARD]["final"]) >= LEARNED:
        return "says little, as the baseline hardly learned"
    if "lower" in verdicts:
        return "does not agree with what is reported"
    if "undecided" in verdicts:
        return "neither shows nor refutes what is reported"
    return "agrees with what is reported"


def _others(here: pd.DataFrame, arm: ArmName) -> list[str]:
    """The other measures, and stability: the spread of seeds, by Pitman and Morgan's test for pairs."""
    rate = main_rate(here)
    differing, ends = [], None
    for metric, rows in here.groupby("metric", sort=False):
        difference = differences(rows, (arm, rate), (BASELINE, rate), "final")
        mean, half = mean_and_half(difference)
        if metric == REWARD:
            wide = rows.pivot(index="seed", columns="arm", values="final")
            ends = wide[[arm, BASELINE]].dropna()
        elif abs(mean) > half:
            differing.append(f"{short(str(metric))} ({signed(mean, half)})")
    sentences = [f"Beside the reward it differs from exact, beyond its interval, in {listed(differing)}."]
    if not differing:
        sentences = ["Beside the reward it differs from exact in nothing beyond its interval."]
    if ends is not None and len(ends) >= 3 and np.ptp(ends[BASELINE]) > 0:
        ours, exact = ends[arm].to_numpy(), ends[BASELINE].to_numpy()
        ratio = ours.std(ddof=1) / exact.std(ddof=1)
        # Where seeds differ in both arms alike, up to rounding, there is nothing to test.
        if all(np.ptp(both) > 1e-9 for both in (ours - exact, ours + exact)):
            p = float(stats.pearsonr(ours + exact, ours - exact).pvalue)
            verdict = "no difference shown" if p >= LEVEL else "more stable" if ratio < 1 else "less stable"
            sentences.append(f"Its seeds spread {ratio:.2f} times as far as exact's (p {p:.2f}: {verdict}).")
    return sentences


SWEPT: dict[str, str] = {"comfortable": "", "paper-eta": " (early code)"}
"""Settings that differ in eta alone, with the mark of it."""


def sweep(csv: Path) -> str:
    """The exact baseline's rise by noise level and learning rate, and whether the early code's eta learns."""
    table, config = complete(csv), config_of(csv)
    table = table[(table.arm == BASELINE) & (table.metric == REWARD) & table.setting.isin(SWEPT)]
    if table.empty:
        raise ValueError(f"{csv} has no exact runs of {' or '.join(SWEPT)} yet: train some with --settings")
    etas: dict[str, float] = {"comfortable": config["eta"], "paper-eta": paper.ETA.low}
    outcomes = runs(table)
    factors = sorted(outcomes.lr_factor.unique())
    cells = {key: rows["final"] for key, rows in outcomes.groupby(["setting", "lr_factor"])}
    rows = []
    for setting in [name for name in SWEPT if name in set(outcomes.setting)]:
        found = [cells.get((setting, factor), pd.Series(dtype=float)) for factor in factors]
        seeds = sorted({len(rises) for rises in found if len(rises)})
        rows.append(
            (
                f"{etas[setting]:g}{SWEPT[setting]}",
                " or ".join(map(str, seeds)),
                *(signed(*mean_and_half(rises)) for rises in found),
            )
        )
    headings = [f"rate {config['learning_rate'] * factor:.2g} (×{factor:.3g})" for factor in factors]
    parts = [
        f"**{table.model.iloc[0]}, {ALGORITHMS[table.algorithm.iloc[0]]}**, exact gradients: rise in reward "
        f"on evaluation prompts in {table.step.max()} training steps:",
        markdown_table(("eta", "seeds", *headings), rows),
        eta_sentence(outcomes, etas),
    ]
    return "\n\n".join(filter(None, parts))


def eta_sentence(outcomes: pd.DataFrame, etas: dict[str, float]) -> str:
    """Whether training learns at the early code's eta, at its best learning rate of those tried."""
    best = {}
    for setting, of_setting in outcomes.groupby("setting"):
        means = of_setting.groupby("lr_factor")["final"].mean()
        at_best = of_setting[of_setting.lr_factor == means.idxmax()]["final"]
        best[setting] = (float(means.idxmax()), at_best, len(means), means.idxmax() == means.index.max())
    if "paper-eta" not in best:
        return ""
    factor, rises, rates, at_the_edge = best["paper-eta"]
    eta = f"The early code's eta {etas['paper-eta']:g}"
    ratio = learning(rises)
    if len(rises) < 2:
        verdict = f"{eta}: one seed cannot tell whether it learns at this size. At"
        spread = ""
    else:
        verdict = f"{eta} {'learns' if ratio >= LEARNED else 'does not visibly learn'} at this size: at"
        spread = f", {ratio:.1f} times the spread of its {len(rises)} seeds ({LEARNED} is the bar)"
    text = (
        f"{verdict} the best of {rates} learning rate{'s' * (rates != 1)} (×{factor:.3g}"
        f"{', the largest tried' if at_the_edge and rates > 1 else ''}) "
        f"the reward changed by {rises.mean():+.4f}{spread}"
    )
    if "comfortable" in best:
        factor, other, *_ = best["comfortable"]
        text += f"; eta {etas['comfortable']:g} at its best (×{factor:.3g}): {other.mean():+.4f}"
    return text + "."
