"""Convergence tables as Markdown, for README: per regime a table of arms, and what it says of the paper.

Everything is computed from the CSVs alone. Arms are compared at the regime's main learning rate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from experiments import paper
from experiments.common.intervals import FEWEST, LEVEL, MARGIN, Comparison, compare, mean_and_half
from experiments.common.markdown import counted, listed, signed
from experiments.common.markdown import table as markdown_table
from experiments.convergence import offpolicy as offpolicy_report
from experiments.convergence.analysis import (
    at_main_rate,
    complete,
    config_of,
    differences,
    main_rate,
    recipe_of,
    runs,
    spent,
    totals,
)
from experiments.convergence.arms import ALGORITHMS, ARMS, REGIMES, REWARD, ArmName, described
from experiments.convergence.figure import (
    BASELINE,
    LEARNED,
    choices,
    hacking_sentence,
    learning,
    learning_sentence,
    of_baseline,
    short,
)
from repro.training.recipe import Recipe

JAGGS: tuple[ArmName, ...] = ("jagg", "routed")
"""The arms that the paper's statement is about: the method on all groups, and as it was used."""

STABILITY = 6
"""Seeds from which on spreads are compared: with fewer the test could hardly find anything."""


def markdown(csv: Path) -> str:
    """Tables and sentences of every regime with complete runs."""
    table, spending = complete(csv), spent(csv)
    all_rates = runs(table)
    outcomes = at_main_rate(all_rates)
    parts = []
    for regime in [name for name in REGIMES if name in set(outcomes.regime)]:
        here = outcomes[outcomes.regime == regime]
        rate, steps = main_rate(here), table[table.regime == regime].step.max()
        heading = (
            f"**{table.model.iloc[0]}, {ALGORITHMS[table.algorithm.iloc[0]]}, {regime}** "
            f"({described(regime, rate)}), {sampling_words(recipe_of(csv, regime))}, {start_words(csv)}: "
            f"rise on evaluation prompts in {steps} training steps"
        )
        parts += [f"{heading}:", _table(here, spending), _sentences(here)]
        rates = rates_sentence(all_rates[all_rates.regime == regime])
        parts += filter(None, [rates, offpolicy_report.sentence(csv, regime)])
    return "\n\n".join(parts)


def rates_sentence(of_regime: pd.DataFrame) -> str:
    """At which learning rate the reward over the run rose most, by arm; empty where one rate alone was tried.

    Over the seeds that all of an arm's rates have. Each arm at its best rate is the ablation's to compare.
    """
    best: dict[tuple, list[str]] = {}
    reward = of_regime[of_regime.metric == REWARD]
    for arm in [arm for arm in ARMS if arm in set(reward.arm)]:
        wide = reward[reward.arm == arm].pivot(index="seed", columns="lr_factor", values="curve").dropna()
        if wide.shape[1] > 1 and not wide.empty:
            tried = tuple(f"×{factor:.3g}" for factor in wide)
            best.setdefault((tried, len(wide), f"×{wide.mean().idxmax():.3g}"), []).append(ARMS[arm].label)
    return " ".join(
        f"Of learning rates {listed(tried)} ({counted(seeds, 'seed')}), the reward over the run was highest "
        f"at {rate} for {listed(arms)}."
        for (tried, seeds, rate), arms in best.items()
    )


def sampling_words(recipe: Recipe) -> str:
    """What a training step samples."""
    return f"{recipe.prompts} prompts × {recipe.images} images of {recipe.sampling_steps} sampling steps"


def start_words(csv: Path) -> str:
    """Where a table's runs started from."""
    noise = config_of(csv).get("start_noise") or 0.0
    return f"from noise {noise:g} on the weights" if noise else "from the model's own weights"


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
    """Of an arm's reward with the exact baseline's, within `MARGIN` of its rise; None with fewer than
    `FEWEST` seeds of both, or where the baseline did not rise.
    """
    reward, rate = here[here.metric == REWARD], main_rate(here)
    difference = differences(reward, (arm, rate), (BASELINE, rate), outcome)
    rises = of_baseline(here)[lambda rows: rows.metric == REWARD].set_index("seed")[outcome]
    margins = MARGIN * rises.reindex(difference.index)
    if len(difference) < FEWEST or margins.mean() <= 0:
        return None
    return compare(difference.to_numpy(), margins.to_numpy())


def following_sentence(here: pd.DataFrame, arm: ArmName) -> str:
    """An arm's reward against the exact baseline's, and whether that agrees with the paper's statement."""
    label = ARMS[arm].label
    end, curve = (against_exact(here, arm, outcome) for outcome in ("final", "curve"))
    if end is None or curve is None:
        return f"{label}: not to be judged without {FEWEST} seeds and a baseline that rose."
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
    if ends is not None and len(ends) >= STABILITY and np.ptp(ends[BASELINE]) > 0:
        ours, exact = ends[arm].to_numpy(), ends[BASELINE].to_numpy()
        ratio = ours.std(ddof=1) / exact.std(ddof=1)
        # Where seeds differ in both arms alike, up to rounding, there is nothing to test.
        if all(np.ptp(both) > 1e-9 for both in (ours - exact, ours + exact)):
            p = float(stats.pearsonr(ours + exact, ours - exact).pvalue)
            verdict = "no difference shown" if p >= LEVEL else "more stable" if ratio < 1 else "less stable"
            sentences.append(f"Its seeds spread {ratio:.2f} times as far as exact's (p {p:.2f}: {verdict}).")
    return sentences
