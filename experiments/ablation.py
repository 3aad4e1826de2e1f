"""What the interpolation is worth: JAGG against exact, endpoints-only and equal-cost arms, by seed.

Reads the convergence table's cells and trains those that are missing (`experiments.convergence`). Contrasts,
each paired by seed, per setting, metric and outcome:

* JAGG minus exact, with an equivalence test;
* endpoints-only, in each reading, minus JAGG: reported to be consistently worse;
* exact on fewer steps, at JAGG's cost, minus JAGG: the control that the paper's summary lacks.

The equivalence margin is a share of the exact baseline's own mean rise, set by ``--margin`` before any run
and kept in the provenance. Where cells of several learning rates exist, arms are compared at the same rate
and at each arm's own best one.

``ablation.csv`` holds the contrasts; ``ablation-efficiency.csv`` holds what a run's rise cost, in backwards,
in forwards by the cost model, and in seconds, apart because seconds differ from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import convergence
from experiments.ablation_report import plot, show
from experiments.cells import ArmName, SettingName
from experiments.convergence_data import OUTCOMES, best_factors, complete, differences, runs, spent
from experiments.evaluation import REWARD
from experiments.paired import compare
from repro.provenance import collect, plain
from repro.results import Table, read

__all__ = ["Config", "plot", "run"]

READINGS: tuple[ArmName, ...] = ("endpoints-own", "endpoints-sum", "endpoints-half", "endpoints-nearest")
CONTRASTS: tuple[tuple[ArmName, ArmName], ...] = (
    ("jagg", "exact"),
    *((reading, "jagg") for reading in READINGS),
    ("subset", "jagg"),
)

COLUMNS: dict[str, type] = {
    "model": str,
    "algorithm": str,
    "setting": str,
    "metric": str,
    "outcome": str,
    "first": str,
    "second": str,
    "rates": str,
    "lr_first": float,
    "lr_second": float,
    "seeds": int,
    "difference": float,
    "half_interval": float,
    "p_sign_flip": float,
    "margin": float,
    "p_equivalence": float,
    "verdict": str,
}
KEY = ("setting", "metric", "outcome", "first", "second", "rates")
EFFICIENCY_COLUMNS: dict[str, type] = {
    "model": str,
    "algorithm": str,
    "setting": str,
    "arm": str,
    "lr_factor": float,
    "seed": int,
    "rise": float,
    "backwards": int,
    "forwards": float,
    "seconds": float,
}
EFFICIENCY_KEY = ("setting", "arm", "lr_factor", "seed")


@dataclass(frozen=True)
class Config(convergence.Config):
    """Contrasts between arms; the cells' options are those of convergence."""

    arms: tuple[ArmName, ...] = ("exact", "jagg", *READINGS, "subset")
    """ways to train"""
    settings: tuple[SettingName, ...] = ("comfortable", "sparse")
    """regimes in which the arms are compared"""
    margin: float = 0.1
    """share of the exact baseline's mean rise within which two arms count as equal"""


def run(config: Config) -> Path:
    """Train the cells that are missing and write the contrasts anew; returns their CSV.

    Raises:
        ValueError: a margin that is not above 0, and whatever `convergence.train_cells` refuses.
    """
    if not config.margin > 0:
        raise ValueError(f"margin is {config.margin}, expected a share above 0 of the baseline's rise")
    cells = convergence.train_cells(_cells_config(config))
    write(cells, config)
    show(cells.with_name("ablation.csv"))
    return cells.with_name("ablation.csv")


def _cells_config(config: Config) -> convergence.Config:
    """The same cells as convergence's: in quick form, exactly those that it trains."""
    values = {f.name: getattr(config, f.name) for f in fields(convergence.Config)}
    if config.quick:
        values |= {"settings": ("comfortable",), "arms": ()}
    return convergence.Config(**values)


def write(cells: Path, config: Config) -> None:
    """The two tables from the convergence tables beside ``cells``, replacing older ones."""
    table = complete(read(cells))
    outcomes = runs(table)
    common = {"model": table.model.iloc[0], "algorithm": table.algorithm.iloc[0]}
    provenance = collect({"margin": config.margin, "cells": plain(config)}, seed=config.seed)
    for name, columns, key, rows in (
        ("ablation", COLUMNS, KEY, _contrasts(outcomes, config.margin)),
        ("ablation-efficiency", EFFICIENCY_COLUMNS, EFFICIENCY_KEY, _efficiency(outcomes, spent(cells))),
    ):
        path = cells.with_name(f"{name}.csv")
        with Table(path, columns, key, provenance=provenance, fresh=True) as written:
            written.append(*({**common, **row} for row in rows))


def _contrasts(outcomes: pd.DataFrame, share: float) -> Iterator[dict[str, Any]]:
    for setting, here in outcomes.groupby("setting", sort=False):
        best = best_factors(here)
        rates = {"same": dict.fromkeys(best, 1.0)} | ({"best": best} if here.lr_factor.nunique() > 1 else {})
        for metric, of_metric in here.groupby("metric", sort=False):
            for outcome in OUTCOMES:
                for rate, factor in rates.items():
                    for first, second in CONTRASTS:
                        if first not in factor or second not in factor or "exact" not in factor:
                            continue
                        chosen = (first, factor[first]), (second, factor[second])
                        rise = _mean_rise(of_metric, factor["exact"], outcome)
                        by_seed = differences(of_metric, *chosen, outcome)
                        if by_seed.empty or not abs(rise) > 0:
                            continue
                        result = compare(by_seed.to_numpy(), share * abs(rise))
                        yield {
                            "setting": setting,
                            "metric": metric,
                            "outcome": outcome,
                            "first": first,
                            "second": second,
                            "rates": rate,
                            "lr_first": factor[first],
                            "lr_second": factor[second],
                            "seeds": result.n,
                            "difference": result.mean,
                            "half_interval": result.half,
                            "p_sign_flip": result.p_sign_flip,
                            "margin": result.margin,
                            "p_equivalence": result.p_equivalence,
                            "verdict": result.verdict,
                        }


def _mean_rise(of_metric: pd.DataFrame, factor: float, outcome: str) -> float:
    exact = of_metric[(of_metric.arm == "exact") & (of_metric.lr_factor == factor)]
    return float(exact[outcome].mean())


def _efficiency(outcomes: pd.DataFrame, spending: pd.DataFrame) -> Iterator[dict[str, Any]]:
    keys = list(EFFICIENCY_KEY)
    totals = spending.groupby(keys)[["backwards", "cost", "seconds"]].max()
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
