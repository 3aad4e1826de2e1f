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
from pathlib import Path

from experiments.ablation.analysis import contrasts, efficiency
from experiments.ablation.config import Config, check
from experiments.convergence import measure as convergence
from experiments.convergence.analysis import complete, runs, spent
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.provenance import collect
from repro.results import Table, provenance_path

__all__ = ["Config", "run"]

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
    check(config)
    ranks.on_main(_check_margin, config)
    cells = convergence.run(config.runs, ranks)
    ranks.on_main(write, cells, config)
    return cells.with_name("ablation.csv")


def _check_margin(config: Config) -> None:
    """Refuse to move the margin once the contrasts were seen."""
    csv = config.runs.folder / "ablation.csv"
    beside = provenance_path(csv)
    if config.runs.fresh or not beside.exists():
        return
    before = json.loads(beside.read_text())["config"]["margin"]
    if config.margin != before:
        raise InputError(
            f"margin is {config.margin}, {csv} has {before}, which was set beforehand: "
            "keep it, pass another --out, or --fresh to train everything again"
        )


def write(cells: Path, config: Config) -> None:
    """The two tables from the convergence tables beside ``cells``, replacing older ones."""
    table = complete(cells)
    outcomes = runs(table)
    common = {"model": table.model.iloc[0], "algorithm": table.algorithm.iloc[0]}
    made = json.loads(provenance_path(cells).read_text())
    provenance = collect({"margin": config.margin, "cells": made["config"]}, seed=config.runs.seed)
    kept = ("checkpoint_sha256", "device", "cpu", "threads", "ranks")
    provenance |= {k: made[k] for k in kept if k in made}
    for name, columns, key, rows in (
        ("ablation", COLUMNS, KEY, contrasts(outcomes, config.margin)),
        ("ablation-efficiency", EFFICIENCY_COLUMNS, EFFICIENCY_KEY, efficiency(outcomes, spent(cells))),
    ):
        path = cells.with_name(f"{name}.csv")
        table = Table(path, columns, key, provenance=provenance, fresh=True)
        table.replace(*({**common, **row} for row in rows))
