"""The ablation's contrasts: how they are made of runs, and what they say of the paper's claims.

Two contrasts are primary: JAGG minus exact, and exact on fewer steps at JAGG's cost minus JAGG, both in the
comfortable regime at the rate at which its arms were trained. All others are exploratory, and corrected for
their number within a table and outcome. They were declared after the runs in results/ of December 2026 were
seen; of later ones they are declared beforehand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.common.findings import Finding, Judgement
from experiments.common.intervals import Comparison, Verdict, compare, decide
from experiments.common.markdown import counted, listed, ranged
from experiments.convergence.analysis import (
    BASELINE,
    OUTCOMES,
    RUN,
    at_factors,
    at_main_rate,
    best_factors,
    learned,
    main_rate,
)
from experiments.convergence.arms import REWARD, ArmName
from repro.results import provenance_path, read

READINGS: dict[ArmName, str] = {
    "endpoints-own": "own s",
    "endpoints-sum": "whole sum",
    "endpoints-half": "half and half",
    "endpoints-nearest": "nearest",
}
"""What "the full loss assigned to the endpoints independently" may mean, and short names for it."""
PRIMARY: tuple[tuple[ArmName, ArmName], ...] = (("jagg", "exact"), ("subset", "jagg"))
CONTRASTS: tuple[tuple[ArmName, ArmName], ...] = (
    ("jagg", "exact"),
    *((reading, "jagg") for reading in READINGS),
    ("subset", "jagg"),
    ("subset-paper", "jagg"),
)
MAIN = "curve"
"""The outcome that decides; the end of a run is beside it."""
COSTS = {"backwards": 1e6, "forwards": 1e6, "seconds": 1e3}
"""Columns of `spending`, and the amount of each that a rise is given for."""
HANDICAP = (
    "The subsets' steps are drawn per prompt; DanceGRPO draws them per sample, which averages more steps in "
    "an update, so these rivals may be handicapped here."
)


def judged(csv: Path) -> pd.DataFrame:
    """The reward's contrasts, with columns ``judged`` (a `Verdict`), ``primary``, ``rise`` and ``percent``.

    Verdicts are made anew from the numbers: the CSV's words are of an older rule. ``rise`` is exact's mean
    rise, and ``percent`` the difference in per cent of it, as ``percent_half`` is its half interval; the
    rise's own spread is not in that.
    """
    table = read(csv)[lambda rows: rows.metric == REWARD].reset_index(drop=True)
    share = json.loads(provenance_path(csv).read_text())["config"]["margin"]
    made = [
        Comparison(r.seeds, r.difference, r.half_interval, r.p_sign_flip, r.margin, r.p_equivalence)
        for r in table.itertuples()
    ]
    pairs = pd.Series(list(zip(table["first"], table["second"], strict=True)), dtype=object)
    table["primary"] = pairs.isin(PRIMARY) & (table.regime == "comfortable") & (table.rates == "same")
    table["judged"] = [comparison.decision for comparison in made]
    for _, rows in table[~table.primary].groupby("outcome"):
        table.loc[rows.index, "judged"] = decide([made[i] for i in rows.index])
    table["rise"] = table.margin / share
    table["percent"] = 100 * table.difference / table.rise
    table["percent_half"] = 100 * table.half_interval / table.rise
    return table


def learned_in(csv: Path) -> dict[str, bool]:
    """By regime, whether the exact baseline's reward rose at the main rate."""
    exact = spending(csv)[lambda rows: rows.arm == BASELINE]
    return {str(regime): learned(rows.rise) for regime, rows in exact.groupby("regime")}


def spending(csv: Path) -> pd.DataFrame:
    """The runs of ablation-efficiency.csv, beside ablation.csv, at every regime's main rate."""
    return at_main_rate(read(csv.with_name("ablation-efficiency.csv")))


def findings(csv: Path) -> dict[str, Finding]:
    """Of "endpoints" and "equal-cost": minus JAGG over the run, in the comfortable regime, at its main rate.

    In per cent of exact's rise.
    """
    table = judged(csv)
    table = table[(table.outcome == MAIN) & (table.regime == "comfortable") & (table.rates == "same")]
    rows = {row["first"]: row for _, row in table[table["second"] == "jagg"].iterrows()}
    readings = {reading: rows[reading] for reading in READINGS if reading in rows}
    found = {}
    if readings:
        text = _readings(readings)
        judgement = of_endpoints(
            [row.judged for row in readings.values()], learned_in(csv).get("comfortable", False)
        )
        found["endpoints"] = Finding(text, *judgement)
    if "subset" in rows:
        found["equal-cost"] = Finding(words(rows["subset"]), why=HANDICAP)
    return found


def _readings(rows: Mapping[ArmName, pd.Series]) -> str:
    """Those that are lower or higher than JAGG in numbers, the others counted."""
    told = [reading for reading, row in rows.items() if row.judged in (Verdict.LOWER, Verdict.HIGHER)]
    others = Counter(row.judged for reading, row in rows.items() if reading not in told)
    said = [f"{READINGS[reading]} {words(rows[reading])}" for reading in told]
    said += [f"{count} of {counted(len(rows), 'reading')} {verdict}" for verdict, count in others.items()]
    return "; ".join(said)


def words(row: pd.Series) -> str:
    """Such as "-1.2 (-2.0 … -0.4), lower, 6 seeds"."""
    return f"{ranged(row.percent, row.percent_half)}, {row.judged}, {counted(row.seeds, 'seed')}"


def of_endpoints(verdicts: Sequence[Verdict], learnt: bool) -> tuple[Judgement, str]:
    """Of "consistently worse", in the light of the readings' verdicts against JAGG, with a reason.

    Args:
        verdicts: one a reading; which of them is meant is not known.
        learnt: whether the exact baseline did.
    """
    order = (Verdict.LOWER, Verdict.EQUAL, Verdict.HIGHER, Verdict.UNDECIDED)
    counts = {verdict: verdicts.count(verdict) for verdict in order if verdict in verdicts}
    came_out = listed([f"{count} {verdict}" for verdict, count in counts.items()])
    why = f"Which reading is meant is not known; of {counted(len(verdicts), 'reading')} came out {came_out}."
    if not learnt:
        return Judgement.UNDECIDED, "The exact baseline was not seen to learn."
    if set(counts) == {Verdict.LOWER}:
        return Judgement.AGREES, ""
    if Verdict.LOWER in counts:
        return Judgement.NOT_CONTRADICTED, why
    return (Judgement.UNDECIDED if Verdict.UNDECIDED in counts else Judgement.DISAGREES), why


def contrasts(outcomes: pd.DataFrame, margin: float) -> Iterator[dict[str, Any]]:
    """The rows of ablation.csv, of the outcomes of runs (`experiments.convergence.analysis.runs`).

    Args:
        outcomes: of complete runs.
        margin: share of the exact baseline's rise within which two arms count as equal.
    """
    for regime, here in outcomes.groupby("regime", sort=False):
        main = main_rate(here)
        for rates, factors in _rates(here):
            for metric, of_metric in here.groupby("metric", sort=False):
                for outcome in OUTCOMES:
                    values = at_factors(of_metric, factors, outcome)
                    for first, second in CONTRASTS:
                        if not {first, second, "exact"} <= set(values):
                            continue
                        if rates == "best" and (factors[[first, second, "exact"]] == main).all(axis=None):
                            continue  # "same" has it, of more seeds
                        row = _contrast(values, first, second, margin)
                        if row:
                            yield {
                                "regime": regime,
                                "metric": metric,
                                "outcome": outcome,
                                "rates": rates,
                                "lr_first": factors[first].mode()[0],
                                "lr_second": factors[second].mode()[0],
                                **row,
                            }


def _rates(here: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The choices of learning rates in a regime: a name, and factors as seeds by arms."""
    main = main_rate(here)
    for factor in sorted(here.lr_factor.unique(), key=lambda factor: (factor != main, factor)):
        name = "same" if factor == main else f"×{factor:g}"
        yield name, pd.DataFrame(factor, index=here.seed.unique(), columns=here.arm.unique())
    yield "best", best_factors(here)


def _contrast(values: pd.DataFrame, first: ArmName, second: ArmName, share: float) -> dict[str, Any]:
    """Of two arms, over the seeds that have both and the exact one; empty if there is nothing to compare."""
    values = values[list({first, second, "exact"})].dropna()
    rises = values["exact"]
    if values.empty or rises.mean() == 0:
        return {}
    # An exact baseline that fell has a margin, too: a share of its fall.
    margins = share * np.sign(rises.mean()) * rises
    result = compare((values[first] - values[second]).to_numpy(), margins.to_numpy())
    return {
        "first": first,
        "second": second,
        "seeds": result.n,
        "difference": result.mean,
        "half_interval": result.half,
        "p_sign_flip": result.p_sign_flip,
        "margin": result.margin,
        "p_equivalence": result.p_equivalence,
        "verdict": result.verdict,
    }


def efficiency(outcomes: pd.DataFrame, cost: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows of ablation-efficiency.csv: a run's rise and what it cost (`analysis.spent`)."""
    keys = list(RUN)
    totals = cost.groupby(keys)[["backwards", "cost", "seconds"]].max()
    for row in outcomes[outcomes.metric == REWARD].itertuples():
        key = {name: getattr(row, name) for name in keys}
        total = totals.loc[tuple(key.values())]
        yield {
            **key,
            "rise": row.final,
            "backwards": int(total.backwards),
            "forwards": float(total.cost),
            "seconds": float(total.seconds),
        }


def rise_per(runs: pd.DataFrame, column: str) -> pd.Series:
    """The rises of `spending` for as much of a cost as `COSTS` says."""
    return runs.rise / runs[column] * COSTS[column]
