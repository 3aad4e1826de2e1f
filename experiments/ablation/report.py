"""The ablation's section of the report: contrasts and verdicts beside what is reported, rises by cost."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from experiments import paper
from experiments.ablation.analysis import (
    COSTS,
    HANDICAP,
    MAIN,
    READINGS,
    findings,
    judged,
    learned_in,
    rise_per,
    spending,
)
from experiments.common.intervals import mean_and_half
from experiments.common.markdown import listed, ranged, signed
from experiments.common.markdown import table as markdown_table
from experiments.convergence.analysis import BASELINE
from experiments.convergence.arms import ALGORITHMS, ARMS, REGIMES, described
from experiments.convergence.report import beside, learning_sentence

HEADINGS = ("contrast", "seeds", "reported", "over the run", "verdict", "at the end", "verdict")
EFFICIENCY = ("arm", "seeds", "rise", "per 10⁶ backwards", "per 10⁶ forwards", "per 1000 s")


def markdown(csv: Path) -> str:
    """Tables of every regime, then what they say of the paper's ablation."""
    table, cost, learned = judged(csv), spending(csv), learned_in(csv)
    name, parts = f"{table.model.iloc[0]}, {ALGORITHMS[table.algorithm.iloc[0]]}", []
    for regime in [name for name in REGIMES if name in set(table.regime)]:
        runs = cost[cost.regime == regime]
        parts += [
            f"**{name}, {regime}** ({described(regime, runs.lr_factor.iloc[0])}): differences in reward, in "
            "% of exact's rise, paired by seed. "
            + learning_sentence(runs[runs.arm == BASELINE].rise)
            + ("" if learned.get(regime) else " So nothing here tells arms apart, whatever the verdicts."),
            _contrasts(table[table.regime == regime]),
        ]
        if learned.get(regime):
            parts += ["What the rise of an arm's reward cost:", _costs(runs)]
    return "\n\n".join([*parts, _sentences(csv)])


def _contrasts(table: pd.DataFrame) -> str:
    """A row a contrast; the primary ones are in bold."""
    rows, keys = [], ["first", "second", "rates"]
    for (first, second, rates), of_contrast in table[shown(table)].groupby(keys, sort=False):
        by_outcome = of_contrast.set_index("outcome")
        curve, end = by_outcome.loc[MAIN], by_outcome.loc["final"]
        label = f"{ARMS[first].label} − {ARMS[second].label}{at_rates(rates)}"
        rows.append(
            (
                f"**{label}**" if curve.primary else label,
                curve.seeds,
                reported(first, second),
                *(
                    text
                    for row in (curve, end)
                    for text in (ranged(row.percent, row.percent_half), row.judged)
                ),
            )
        )
    return markdown_table(HEADINGS, rows)


def shown(table: pd.DataFrame) -> pd.Series:
    """Which contrasts to show: those at the main and at each arm's best rate; of JAGG with exact all."""
    return table.rates.isin(["same", "best"]) | (table["second"] == BASELINE)


def at_rates(rates: str) -> str:
    """What to add to a contrast's name for a choice of learning rates."""
    if rates == "best":
        return ", each at its best rate"
    return "" if rates == "same" else f", both at rate {rates}"


def reported(first: str, second: str) -> str:
    """What the paper's summary says of a contrast."""
    if (first, second) == ("jagg", BASELINE):
        return "equal or slightly above"
    return "lower" if first in READINGS and second == "jagg" else "-"


def _costs(runs: pd.DataFrame) -> str:
    """Of one regime's runs, a row an arm."""
    rows = []
    for arm in [arm for arm in ARMS if arm in set(runs.arm)]:
        of_arm = runs[runs.arm == arm]
        costs = (_three_digits(rise_per(of_arm, column)) for column in COSTS)
        rows.append((ARMS[arm].label, len(of_arm), signed(*mean_and_half(of_arm.rise)), *costs))
    return "\n\n".join(filter(None, (markdown_table(EFFICIENCY, rows), _gain(runs))))


def _three_digits(values: pd.Series) -> str:
    mean, half = mean_and_half(values)
    return f"{mean:+.3g}" + ("" if math.isnan(half) else f"±{half:.2g}")


def _gain(runs: pd.DataFrame) -> str:
    """JAGG's rise per unit of each cost over exact's, paired by seed."""
    by_arm = {arm: rows.set_index("seed") for arm, rows in runs.groupby("arm")}
    if not {BASELINE, "jagg"} <= set(by_arm):
        return ""
    found = []
    for column in COSTS:
        ratios = (rise_per(by_arm["jagg"], column) / rise_per(by_arm[BASELINE], column)).dropna()
        mean, half = mean_and_half(ratios)
        found.append(f"{mean:.2f}{'' if math.isnan(half) else f'±{half:.2f}'} per {column.rstrip('s')}")
    return f"JAGG's rise is {listed(found)} times exact's."


def _sentences(csv: Path) -> str:
    """The reported statement, judged, and the controls at equal cost."""
    found = findings(csv)
    said = []
    if "endpoints" in found:
        endpoints = found["endpoints"]
        said.append(
            f'Reported of endpoints without interpolation: "{paper.ABLATION.text}". Ours, over the run in '
            f"the comfortable regime: {beside(endpoints.judgement)}. {endpoints.why}"
        )
    if "equal-cost" in found:
        said.append(f"Exact on fewer steps is a control that is not reported. {HANDICAP}")
    return " ".join(said)
