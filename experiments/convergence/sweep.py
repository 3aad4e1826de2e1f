"""The sweep as Markdown, for README: the exact baseline over noise level, regime and learning rate.

The sweep's commands are in results/README.md. Everything is computed from the CSV, and from the recipe in
its provenance.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments import paper
from experiments.common.intervals import FEWEST, mean_and_half
from experiments.common.markdown import counted, signed
from experiments.common.markdown import table as markdown_table
from experiments.convergence.analysis import complete, recipe_of, runs
from experiments.convergence.arms import ALGORITHMS, REGIMES, REWARD, RegimeName
from experiments.convergence.figure import BASELINE, LEARNED, learning
from experiments.convergence.report import start_words
from repro.errors import InputError


def markdown(csv: Path) -> str:
    """The rise by regime and learning rate, and whether training learns at the early code's eta.

    Raises:
        ValueError: no complete run of the exact baseline.
    """
    table = complete(csv)
    table = table[(table.arm == BASELINE) & (table.metric == REWARD)]
    if table.empty:
        raise InputError(f"{csv} has no complete run of arm {BASELINE} yet: train one, it is what is swept")
    outcomes = runs(table)
    factors = sorted(outcomes.lr_factor.unique())
    cells = {key: rows["final"] for key, rows in outcomes.groupby(["regime", "lr_factor"])}
    regimes = [name for name in REGIMES if name in set(outcomes.regime)]
    rows = []
    for regime in regimes:
        recipe = recipe_of(csv, regime)
        found = [cells.get((regime, factor), pd.Series(dtype=float)) for factor in factors]
        rows.append(
            (
                REGIMES[regime].label,
                f"{recipe.prompts} × {recipe.images}",
                f"{recipe.eta:g}",
                f"{recipe.learning_rate:.3g}",
                table[table.regime == regime].step.max(),
                " or ".join(sorted({str(len(rises)) for rises in found if len(rises)})),
                *(signed(*mean_and_half(rises)) for rises in found),
            )
        )
    headings = (
        "regime",
        "images",
        "eta",
        "rate ×1",
        "steps",
        "seeds",
        *(f"×{factor:.3g}" for factor in factors),
    )
    base = recipe_of(csv, "comfortable")
    model, algorithm = table.model.iloc[0], ALGORITHMS[table.algorithm.iloc[0]]
    heading = (
        f"**{model}, {algorithm}**, exact gradients, {base.sampling_steps} sampling steps, "
        f"{start_words(csv)}: rise in reward on evaluation prompts, by learning rate:"
    )
    return "\n\n".join((heading, markdown_table(headings, rows), " ".join(_sentences(outcomes, base.eta))))


def _sentences(outcomes: pd.DataFrame, eta: float) -> list[str]:
    """Whether each noise level and regime learns, at its best learning rate of those tried."""
    names: dict[RegimeName, str] = {
        "paper-eta": f"The early code's eta {paper.ETA.low:g}",
        "comfortable": f"Our eta {eta:g}",
        "sparse": "Few images per update",
    }
    return [
        _learns(name, outcomes[outcomes.regime == regime])
        for regime, name in names.items()
        if regime in set(outcomes.regime)
    ]


def _learns(name: str, outcomes: pd.DataFrame) -> str:
    means = outcomes.groupby("lr_factor")["final"].mean()
    best, rates = means.idxmax(), len(means)
    rises = outcomes[outcomes.lr_factor == best]["final"]
    place = f"at its best of {rates} learning rates (×{best:.3g})" if rates > 1 else f"at rate ×{best:.3g}"
    if rates > 1 and best in (means.index.min(), means.index.max()):
        place = place.replace(")", f", the {'largest' if best == means.index.max() else 'smallest'} tried)")
    changed = f"{place} the reward {'rose' if rises.mean() > 0 else 'fell'} by {abs(rises.mean()):.4f}"
    if len(rises) < FEWEST:
        few = f"{counted(len(rises), 'seed')} cannot tell"
        return f"{name}: {changed}; {few} whether that is learning."
    verdict = "learns" if learning(rises) >= LEARNED else "does not visibly learn"
    return (
        f"{name} {verdict} at this size: {changed}, {abs(learning(rises)):.1f} times the spread of its "
        f"{len(rises)} seeds ({LEARNED} is the bar)."
    )
