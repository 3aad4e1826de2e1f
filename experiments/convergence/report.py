"""The convergence table's section of the report: per regime the arms, and what JAGG says of the paper.

Arms are compared at the regime's main learning rate, in per cent of exact's rise, paired by seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from experiments import paper
from experiments.common.findings import Judgement
from experiments.common.intervals import FEWEST, LEVEL, mean_and_half, p_rise, resolution
from experiments.common.markdown import counted, listed, ranged, signed
from experiments.common.markdown import table as markdown_table
from experiments.convergence.analysis import (
    BASELINE,
    WHY,
    Following,
    against_exact,
    at_main_rate,
    complete,
    config_of,
    differences,
    following,
    learned,
    main_rate,
    off_policy,
    percent,
    recipe_of,
    runs,
    spent,
    totals,
)
from experiments.convergence.arms import (
    ALGORITHMS,
    ARMS,
    DIVERSITY,
    REGIMES,
    REWARD,
    ArmName,
    RegimeName,
    described,
)
from repro.rewards import SCORERS
from repro.training.recipe import Recipe

OLD_BAR = 3
"""Times the seeds' spread that a rise had to be to count as learning, until `p_rise` took its place."""
STABILITY = 6
"""Seeds from which on spreads are compared: with fewer the test could hardly find anything."""


def markdown(csv: Path) -> str:
    """Tables and sentences of every regime with complete runs."""
    table, spending = complete(csv), spent(csv)
    all_rates = runs(table)
    outcomes, jaggs = at_main_rate(all_rates), following(all_rates)
    parts = [f'Reported of JAGG: "{paper.QUALITY.text}".']
    for regime in [name for name in REGIMES if name in set(outcomes.regime)]:
        here = outcomes[outcomes.regime == regime]
        steps = table[table.regime == regime].step.max()
        heading = (
            f"**{table.model.iloc[0]}, {ALGORITHMS[table.algorithm.iloc[0]]}, {regime}** "
            f"({described(regime, main_rate(here))}), {sampling_words(recipe_of(csv, regime))}, "
            f"{start_words(csv)}: rise in reward on evaluation prompts at the end of {steps} training steps, "
            "and differences from exact in % of its rise"
        )
        parts += [
            f"{heading}:",
            _arms(here, spending),
            _judged(here, {arm: found for (name, arm), found in jaggs.items() if name == regime}),
            _others(here),
            rates_sentence(all_rates[all_rates.regime == regime]),
            off_policy_sentence(csv, regime),
        ]
    return "\n\n".join(filter(None, parts))


def sampling_words(recipe: Recipe) -> str:
    """What a training step samples."""
    return f"{recipe.prompts} prompts × {recipe.images} images of {recipe.sampling_steps} sampling steps"


def start_words(csv: Path) -> str:
    """Where a table's runs started from."""
    noise = config_of(csv).get("start_noise") or 0.0
    return f"from noise {noise:g} on the weights" if noise else "from the model's own weights"


def _arms(here: pd.DataFrame, spending: pd.DataFrame) -> str:
    """A row an arm."""
    cost, rows = totals(here, spending), []
    for arm in [arm for arm in ARMS if arm in set(here.arm)]:
        rises = here[(here.arm == arm) & (here.metric == REWARD)].final
        total = cost.loc[(arm, main_rate(here))]
        compared = [None if arm == BASELINE else against_exact(here, arm, o) for o in ("curve", "final")]
        rows.append(
            (
                ARMS[arm].label,
                len(rises),
                signed(*mean_and_half(rises)),
                *("-" if c is None else ranged(*percent(c)) for c in compared),
                f"{total.seconds:,.0f}",
                f"{total.cost:,.0f}",
            )
        )
    headings = ("arm", "seeds", "rise", "minus exact, over the run", "at the end", "seconds", "forwards")
    return markdown_table(headings, rows)


def _judged(here: pd.DataFrame, jaggs: Mapping[ArmName, Following]) -> str:
    """Whether the baseline learned, and both JAGGs beside what is reported."""
    sentences = [learning_sentence(here[(here.metric == REWARD) & (here.arm == BASELINE)].final)]
    for arm, found in jaggs.items():
        curve, end = found.verdicts["curve"], found.verdicts["final"]
        sentences.append(
            f"{ARMS[arm].label}, minus exact ({counted(found.comparisons['curve'].n, 'seed')}): {curve} over "
            f"the run, {end} at the end: {beside(found.judgement)}.{stability_words(here, arm)}"
        )
    sentences += [WHY[judgement] for judgement in dict.fromkeys(f.judgement for f in jaggs.values())]
    return " ".join(sentences)


def beside(judgement: Judgement | None) -> str:
    """A judgement of what is reported, as the end of a sentence."""
    if judgement is None or judgement is Judgement.UNDECIDED:
        return "what is reported stays undecided"
    return f"this {judgement}{' with' * (judgement is not Judgement.NOT_CONTRADICTED)} what is reported"


def learning_sentence(rises: pd.Series) -> str:
    """Whether the exact baseline learned, of its rises by seed; and by the bar of old, where that differs."""
    if len(rises) < FEWEST:
        return f"Whether the exact baseline learned takes {FEWEST} seeds or more."
    times = resolution(rises)
    text = (
        f"The exact baseline {'learned' if learned(rises) else 'was not seen to learn'} "
        f"(p of no rise {p_rise(rises):.2g}; its mean rise is {times:.1f} times its seeds' spread)."
    )
    if learned(rises) is not (times >= OLD_BAR):
        then = "learned" if times >= OLD_BAR else "not learned"
        text += (
            f" By the bar set before the runs, {OLD_BAR} times that spread, it had {then}: the rule was "
            "changed after this was known."
        )
    return text


def stability_words(here: pd.DataFrame, arm: ArmName) -> str:
    """The spread of an arm's seeds at the end beside exact's, by Pitman and Morgan's test for pairs."""
    wide = here[here.metric == REWARD].pivot(index="seed", columns="arm", values="final")
    ends = wide[[arm, BASELINE]].dropna()
    ours, exact = ends[arm].to_numpy(), ends[BASELINE].to_numpy()
    # Where seeds differ in both arms alike, up to rounding, there is nothing to test.
    if len(ends) < STABILITY or any(np.ptp(both) <= 1e-9 for both in (exact, ours - exact, ours + exact)):
        return ""
    ratio = ours.std(ddof=1) / exact.std(ddof=1)
    p = float(stats.pearsonr(ours + exact, ours - exact).pvalue)
    verdict = "no difference shown" if p >= LEVEL else "more stable" if ratio < 1 else "less stable"
    return f" Its seeds spread {ratio:.2f} times as far as exact's (p {p:.2f}: {verdict})."


def _others(here: pd.DataFrame) -> str:
    """What was not trained on, in exact's runs and in JAGG's."""
    metrics = [str(metric) for metric in here.metric.unique() if metric != REWARD]
    exact = here[here.arm == BASELINE]
    if not metrics or exact.seed.nunique() < FEWEST:
        return ""
    rate, rows = main_rate(here), []
    for metric in metrics:
        rises = exact[exact.metric == metric].final
        against = differences(here[here.metric == metric], ("jagg", rate), (BASELINE, rate), "final")
        rows.append((short(metric), signed(*mean_and_half(rises)), signed(*mean_and_half(against))))
    headings = ("not trained on", "exact's rise at the end", "JAGG, all groups, minus exact")
    return "\n\n".join(filter(None, (markdown_table(headings, rows), hacking_sentence(exact))))


def hacking_sentence(exact: pd.DataFrame) -> str:
    """Whether what the exact baseline was not trained on rose with its reward, of its runs' outcomes."""
    changed = {}
    for metric, rows in exact.groupby("metric", sort=False):
        mean, half = mean_and_half(rows["final"])
        if abs(mean) > half:
            changed[str(metric)] = mean
    if not changed.pop(REWARD, 0.0) > 0:
        return ""
    # Diversity is no measure of quality: it says how the reward was gained.
    fell = [short(metric) for metric, mean in changed.items() if mean < 0 and metric != DIVERSITY]
    rose = [short(metric) for metric, mean in changed.items() if mean > 0 and metric != DIVERSITY]
    if fell:
        return f"A reward that rises while {listed(fell)} fall{'s' * (len(fell) == 1)} is being hacked."
    return f"With the reward rose {listed(rose)}: no sign of hacking it." if rose else ""


def short(metric: str) -> str:
    """A scorer's kind, for headings: "pickscore" of "pickscore:tiny-pickscore"."""
    return metric.split(":")[0] if metric.split(":")[0] in SCORERS else metric


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


def off_policy_sentence(csv: Path, regime: RegimeName) -> str:
    """How far off-policy a regime's updates were; empty where every rollout has one."""
    table = off_policy(csv)
    found = [
        f"{ARMS[arm].label}: |ratio - 1| reached {of_arm.ratio_deviation.max():.2g}, "
        f"{100 * of_arm.clip_fraction.mean():.0f} % were clipped, a backward took "
        f"{of_arm.extra_forwards.mean():.2g} forwards without gradient besides its own"
        for arm, of_arm in table[table.regime == regime].groupby("arm", sort=False)
    ]
    if not found:
        return ""
    return (
        "How far off-policy the updates were (shares are of all updates, each rollout's first one, which is "
        f"on-policy, among them): {'; '.join(found)}."
    )
