"""What the interpolation is worth: JAGG against exact, endpoints-only and equal-cost arms, by seed.

Reads the convergence table's cells and trains those that are missing (`experiments.convergence.measure`).
Contrasts, each paired by seed, per regime, metric and outcome:

* JAGG minus exact, with an equivalence test;
* endpoints-only, in each reading, minus JAGG: reported to be consistently worse;
* exact on fewer steps, at JAGG's cost here and in the paper's layout, which forwards every step's velocity
  again, minus JAGG: the control that the paper's summary lacks.

The equivalence margin is a share of the exact baseline's own rise, seed by seed
(`experiments.common.intervals`), set by ``--margin`` before any run, kept in the provenance, and refused if
changed later. Column ``rates`` tells at which learning rates arms are compared: ``same``, the one at which a
regime's arms were trained; where cells of others exist, also at each of these, such as ``×2``, and at every
arm's own ``best``, which is chosen for every seed by the other seeds.

``ablation.csv`` holds the contrasts; ``ablation-efficiency.csv`` holds what a run's rise cost, in backwards,
in forwards by the cost model, and in seconds, apart because seconds differ from run to run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.ablation.config import Config
from experiments.common.inputs import load_model
from experiments.common.intervals import compare
from experiments.convergence import measure as convergence
from experiments.convergence.analysis import (
    OUTCOMES,
    at_factors,
    best_factors,
    complete,
    main_rate,
    runs,
    spent,
)
from experiments.convergence.arms import REWARD, ArmName
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.provenance import collect
from repro.results import Table, provenance_path

__all__ = ["Config", "run"]

READINGS: tuple[ArmName, ...] = ("endpoints-own", "endpoints-sum", "endpoints-half", "endpoints-nearest")
CONTRASTS: tuple[tuple[ArmName, ArmName], ...] = (
    ("jagg", "exact"),
    *((reading, "jagg") for reading in READINGS),
    ("subset", "jagg"),
    ("subset-paper", "jagg"),
)

COLUMNS: dict[str, type] = {
    "model": str,
    "algorithm": str,
    "regime": str,
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
KEY = ("regime", "metric", "outcome", "first", "second", "rates")
EFFICIENCY_COLUMNS: dict[str, type] = {
    "model": str,
    "algorithm": str,
    "regime": str,
    "arm": str,
    "lr_factor": float,
    "seed": int,
    "rise": float,
    "backwards": int,
    "forwards": float,
    "seconds": float,
}
EFFICIENCY_KEY = ("regime", "arm", "lr_factor", "seed")


def run(config: Config, ranks: Ranks = ALONE) -> Path:
    """Train the cells that are missing and write the contrasts anew; returns their CSV.

    Raises:
        ValueError: a margin that is not above 0, or another one than before, and whatever
            `convergence.run` refuses.
    """
    if not config.margin > 0:
        raise InputError(f"margin is {config.margin}, expected a share above 0 of the baseline's rise")
    ranks.on_main(_check_margin, config)
    cells = convergence.run(_cells_config(config), ranks)
    csv = cells.with_name("ablation.csv")
    ranks.on_main(write, cells, config)
    return csv


def _cells_config(config: Config) -> convergence.Config:
    """The same cells as convergence's: in quick form, exactly those that it trains."""
    values = {f.name: getattr(config, f.name) for f in fields(convergence.Config)}
    values["arms"] = config.arms or (
        () if config.quick else ("exact", "jagg", *READINGS, "subset", "subset-paper")
    )
    values["regimes"] = config.regimes or ("comfortable", "sparse")[: 1 if config.quick else 2]
    return convergence.Config(**values)


def _check_margin(config: Config) -> None:
    """Refuse to move the margin once the contrasts were seen."""
    folder = convergence.results_folder(config, load_model(config.model, config.device))
    beside = provenance_path(folder / "ablation.csv")
    if config.fresh or not beside.exists():
        return
    before = json.loads(beside.read_text())["config"]["margin"]
    if config.margin != before:
        raise InputError(
            f"margin is {config.margin}, {folder / 'ablation.csv'} has {before}, which was set beforehand: "
            "keep it, pass another --out, or --fresh to train everything again"
        )


def write(cells: Path, config: Config) -> None:
    """The two tables from the convergence tables beside ``cells``, replacing older ones."""
    table = complete(cells)
    outcomes = runs(table)
    common = {"model": table.model.iloc[0], "algorithm": table.algorithm.iloc[0]}
    made = json.loads(provenance_path(cells).read_text())
    provenance = collect({"margin": config.margin, "cells": made["config"]}, seed=config.seed)
    kept = ("checkpoint_sha256", "device", "cpu", "threads", "ranks")
    provenance |= {k: made[k] for k in kept if k in made}
    for name, columns, key, rows in (
        ("ablation", COLUMNS, KEY, _contrasts(outcomes, config.margin)),
        ("ablation-efficiency", EFFICIENCY_COLUMNS, EFFICIENCY_KEY, _efficiency(outcomes, spent(cells))),
    ):
        path = cells.with_name(f"{name}.csv")
        table = Table(path, columns, key, provenance=provenance, fresh=True)
        table.replace(*({**common, **row} for row in rows))


def _contrasts(outcomes: pd.DataFrame, share: float) -> Iterator[dict[str, Any]]:
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
                        row = _contrast(values, first, second, share)
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
