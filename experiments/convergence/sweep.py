"""The sweep's section of the report: the exact baseline over start, noise level, regime and learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.common.intervals import FEWEST, mean_and_half, p_rise
from experiments.common.markdown import counted, signed
from experiments.common.markdown import table as markdown_table
from experiments.convergence.analysis import BASELINE, complete, config_of, recipe_of, runs
from experiments.convergence.arms import REGIMES, REWARD

HEADINGS = (
    "model",
    "start noise",
    "regime",
    "eta",
    "images",
    "sampling",
    "steps",
    "rate ×1",
    "rise, by rate",
)


def markdown(csvs: Sequence[Path]) -> str:
    """One table of all the sweep's folders, a row for each regime in each."""
    rows = [row for csv in csvs for row in _rows(csv)]
    if not rows:
        return "No run of the exact baseline is complete."
    return (
        "Rise of the exact baseline's reward at the end of training, on evaluation prompts; p is of no rise, "
        f"from {FEWEST} seeds on:\n\n{markdown_table(HEADINGS, rows)}"
    )


def _rows(csv: Path) -> list[tuple[object, ...]]:
    table = complete(csv)
    table = table[(table.arm == BASELINE) & (table.metric == REWARD)]
    outcomes = runs(table)
    rows: list[tuple[object, ...]] = []
    for regime in [name for name in REGIMES if name in set(table.regime)]:
        recipe = recipe_of(csv, regime)
        by_rate = outcomes[outcomes.regime == regime].groupby("lr_factor")["final"]
        rows.append(
            (
                table.model.iloc[0],
                f"{config_of(csv).get('start_noise') or 0.0:g}",
                regime,
                f"{recipe.eta:g}",
                f"{recipe.prompts} × {recipe.images}",
                recipe.sampling_steps,
                table[table.regime == regime].step.max(),
                f"{recipe.learning_rate:.3g}",
                "; ".join(f"×{factor:.3g}: {_rise(rises)}" for factor, rises in by_rate),
            )
        )
    return rows


def _rise(rises: pd.Series) -> str:
    """ "+0.0111 (1 seed)"."""
    told = counted(len(rises), "seed") + (f", p {p_rise(rises):.2g}" if len(rises) >= FEWEST else "")
    return f"{signed(*mean_and_half(rises))} ({told})"
