"""Made-up convergence tables whose answer is known."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from experiments.convergence.measure import RUN, TABLES
from repro.training.metrics import METRICS, PHASES
from repro.training.recipe import Recipe

(COLUMNS, _), (TRAINING_COLUMNS, _), (TIMING_COLUMNS, _) = TABLES.values()
STEPS = 8
PROVENANCE = {"checkpoint_sha256": "abc", "device": "a GPU", "cpu": "x", "threads": 2}
SPREAD = (-0.003, -0.001, 0.0, 0.001, 0.002, 0.003)


def rises(center: float, reverse: bool = False) -> list[float]:
    return [center + s for s in (reversed(SPREAD) if reverse else SPREAD)]


def fake(
    rises: dict[tuple[str, float], list[float]], regime: str = "comfortable", metric: str = "reward"
) -> pd.DataFrame:
    """A table in which every run rises linearly by the given amounts, one a seed."""
    return pd.DataFrame(
        [
            (regime, arm, factor, seed, step, metric, 0.5 + rise * step / STEPS)
            for (arm, factor), values in rises.items()
            for seed, rise in enumerate(values)
            for step in range(STEPS + 1)
        ],
        columns=["regime", "arm", "lr_factor", "seed", "step", "metric", "value"],
    )


def write_tables(
    table: pd.DataFrame, folder: Path, algorithm: str = "dance_grpo", start_noise: float = 0.6
) -> Path:
    """All three tables; 100 backwards a step of an exact arm, 50 of another, and a second."""
    folder.mkdir(parents=True, exist_ok=True)
    table = table.assign(model="m", algorithm=algorithm)[list(COLUMNS)]
    steps = table[table.step > 0].drop_duplicates([*RUN, "step"])
    backwards = steps.arm.map({"exact": 100}).fillna(50).astype(int)
    training = steps.assign(**dict.fromkeys(METRICS, 0) | {"step": steps.step, "fault": None})
    training = training.assign(backwards=backwards, forwards=backwards, rollout_forwards=80)
    timings = steps.assign(**dict.fromkeys(PHASES, 0.2))
    path = folder / "convergence.csv"
    table.to_csv(path, index=False)
    training[list(TRAINING_COLUMNS)].to_csv(folder / "convergence-training.csv", index=False)
    timings[list(TIMING_COLUMNS)].to_csv(folder / "convergence-timings.csv", index=False)
    recipe = Recipe(eta=0.7, learning_rate=3e-5, images=12)
    config = {"steps": STEPS, "start_noise": start_noise, **asdict(recipe)}
    (folder / "convergence.provenance.json").write_text(json.dumps({"config": config, **PROVENANCE}))
    return path


def swept(folder: Path, early: dict[float, list[float]], **settings) -> Path:
    comfortable = fake(
        {("exact", 1.0): [0.4, 0.41, 0.42], ("exact", 3.0): [0.8, 0.81, 0.82], ("jagg", 1.0): [9.0]}
    )
    early_code = fake({("exact", factor): values for factor, values in early.items()}, "paper-eta")
    return write_tables(pd.concat([comfortable, early_code]), folder, **settings)
