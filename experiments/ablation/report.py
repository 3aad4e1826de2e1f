"""The ablation as Markdown, for README: contrasts with verdicts, what a rise cost, and the paper's statement.

Everything is computed from the two CSVs alone: the training reward's contrasts, and its rises by seed.
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from experiments import paper
from experiments.ablation.figure import (
    EFFICIENCY,
    OUTCOME,
    agreement,
    at_rates,
    at_same_rate,
    efficiency_rows,
    rise_per,
)
from experiments.common.intervals import FEWEST, mean_and_half
from experiments.common.markdown import counted, listed, signed
from experiments.common.markdown import table as markdown_table
from experiments.convergence.analysis import at_main_rate
from experiments.convergence.arms import ALGORITHMS, ARMS, REGIMES, REWARD, described
from experiments.convergence.figure import BASELINE, LEARNED, learning
from repro.results import read

SHOWN_RATES = ("same", "best")
"""The choices of learning rates that README has of every contrast; of JAGG's with exact it has all."""


def markdown(csv: Path) -> str:
    """Tables of every regime, then what they say of the paper's ablation."""
    table, efficiency = read(csv), at_main_rate(read(csv.with_name("ablation-efficiency.csv")))
    table = table[table.metric == REWARD]
    name = f"{table.model.iloc[0]}, {ALGORITHMS[table.algorithm.iloc[0]]}"
    parts = []
    for regime in [name for name in REGIMES if name in set(table.regime)]:
        runs = efficiency[efficiency.regime == regime]
        parts += [
            f"**{name}, {regime}** ({described(regime, runs.lr_factor.iloc[0])}): differences in reward, "
            f"paired by seed{_learned(runs)}:",
            _contrasts(table[table.regime == regime]),
            "What the rise of an arm's reward cost:",
            markdown_table(EFFICIENCY, efficiency_rows(runs)),
        ]
    return "\n\n".join([*parts, _sentences(table, efficiency)])


def _contrasts(table: pd.DataFrame) -> str:
    keys = ["first", "second", "rates"]
    table = table[table.rates.isin(SHOWN_RATES) | (table["second"] == BASELINE)]
    rows = []
    for key, of_contrast in table.groupby(keys, sort=False):
        curve, end = (of_contrast[of_contrast.outcome == o].iloc[0] for o in (OUTCOME, "final"))
        first, second, rates = key
        rows.append(
            (
                f"{ARMS[first].label} − {ARMS[second].label}" + at_rates(rates),
                curve.seeds,
                reported(first, second),
                *(text for outcome in (curve, end) for text in _outcome(outcome)),
            )
        )
    headings = ("over the run", "p", "margin", "verdict", "at the end", "p", "margin", "verdict")
    return markdown_table(("contrast", "seeds", "reported", *headings), rows)


def _outcome(row: pd.Series) -> tuple[str, str, str, str]:
    """A difference, its sign-flip p, the margin it is held against, and the verdict."""
    p = "-" if math.isnan(row.p_sign_flip) else f"{row.p_sign_flip:.2f}"
    return signed(row.difference, row.half_interval), p, f"{row.margin:.4f}", row.verdict


def reported(first: str, second: str) -> str:
    """What the paper's summary says of a contrast."""
    if (first, second) == ("jagg", BASELINE):
        return "equal or slightly above"
    return "lower" if first.startswith("endpoints") and second == "jagg" else "-"


def _learned(runs: pd.DataFrame) -> str:
    """Whether the regime can tell arms apart at all."""
    ratio = learning(runs[runs.arm == BASELINE].rise)
    if ratio >= LEARNED:
        return ""
    if math.isnan(ratio):
        return f" (whether the exact baseline learned needs {FEWEST} seeds)"
    return (
        f" (the exact baseline's reward rose by less than {LEARNED} times its seeds' spread, too little to "
        "tell arms apart, whatever the verdicts)"
    )


def _sentences(table: pd.DataFrame, efficiency: pd.DataFrame) -> str:
    reported = f"Reported of endpoints without interpolation: {paper.ABLATION.text}."
    gains = [_gain(efficiency[efficiency.regime == regime]) for regime in REGIMES]
    return " ".join(filter(None, [reported, agreement(table, efficiency), _of_subset(table), *gains]))


def _of_subset(table: pd.DataFrame) -> str:
    """The controls at equal cost."""
    rows = at_same_rate(table)
    sentences = []
    for arm, cost in (("subset", "JAGG's cost"), ("subset-paper", "the cost of JAGG in the paper's layout")):
        of_arm = rows[rows["first"] == arm]
        found = [f"{r.verdict} ({r.regime}, {counted(r.seeds, 'seed')})" for r in of_arm.itertuples()]
        if found:
            sentences.append(
                f"Exact on fewer steps at {cost}, a control that is not among what is reported, minus JAGG: "
                f"{'; '.join(found)}."
            )
    return " ".join(sentences)


def _gain(runs: pd.DataFrame) -> str:
    """JAGG's rise per unit of each cost over exact's, paired by seed; nothing where exact hardly learned."""
    by_arm = {arm: rows.set_index("seed") for arm, rows in runs.groupby("arm")}
    if not {BASELINE, "jagg"} <= set(by_arm) or not learning(by_arm[BASELINE].rise) >= LEARNED:
        return ""
    found = []
    for column, name in (("backwards", "backward"), ("forwards", "forward"), ("seconds", "second")):
        ratios = (rise_per(by_arm["jagg"], column) / rise_per(by_arm[BASELINE], column)).dropna()
        mean, half = mean_and_half(ratios)
        found.append(f"{mean:.2f}{'' if pd.isna(half) else f'±{half:.2f}'} per {name}")
    return f"JAGG's rise is {listed(found)} times exact's ({runs.regime.iloc[0]})."
