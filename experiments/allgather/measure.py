"""How often FSDP2 gathers and scatters a transformer block, for every layout of one update.

The paper says that the joint backward makes exactly one all-gather per module. What is counted here, by
torch's CommDebugMode on gloo ranks, are the collectives of FLUX's architecture (reduced: the numbers depend
on the graph, not on the sizes), block by block, forward and backward apart, for a group of W steps:

- ``exact``: a forward and a backward a step;
- ``exact-stacked``: the group's W steps stacked along the batch, one forward and one backward;
- ``jagg-early``: the early code, W forwards without gradient, then both endpoints, a backward each;
- ``jagg-joint``: the paper's, two endpoint graphs and one joint backward;
- ``jagg-stacked``: the endpoints stacked in one forward and one backward, this suite's default;
- ``jagg-rollout``: the same with the velocities kept from the rollout.

Each with a reduce-scatter after every backward, FSDP's default, and with it held back to the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from experiments import paper
from experiments.allgather.collectives import count
from experiments.allgather.layouts import LAYOUTS
from experiments.common.figures import save
from experiments.common.markdown import table as markdown_table
from repro.console import note, print_table
from repro.distributed.ranks import ALONE, Ranks, spawn
from repro.errors import InputError
from repro.provenance import collect
from repro.results import Table, read


@dataclass(frozen=True)
class Config:
    """The all-gather table's settings."""

    ranks: int = 2
    """processes, on this machine's CPU"""
    groups: int = 2
    """groups in the update"""
    group_size: int = 4
    """W, steps per group"""
    seed: int = 0
    """of weights, latents and advantages"""
    out: Path | None = None
    """results folder; results unless given"""
    fresh: bool = False
    """count everything again"""


COLUMNS: dict[str, type] = {
    "layout": str,
    "checkpointing": bool,
    "sync_held_back": bool,
    "ranks": int,
    "blocks": int,
    "groups": int,
    "group_size": int,
    "backward_calls": int,
    "all_gathers_forward": float,
    "all_gathers_backward": float,
    "reduce_scatters_backward": float,
    "root_collectives": int,
    "gradient_error": float,
}
"""Collectives are per block over the whole update; ``root_collectives`` are those of what is in no block.
``gradient_error`` is relative to the single process's gradient of the same scheme."""
KEY = ("layout", "checkpointing", "sync_held_back")


def run(config: Config, ranks: Ranks = ALONE) -> Path:
    """Count what is missing of the table; returns the CSV.

    Args:
        config: its number of ranks is for one process, which starts them.
        ranks: several, as torchrun started them, count themselves.

    Raises:
        ValueError: fewer than two ranks, no group, or groups without two ends.
    """
    if ranks.size > 1:
        config = replace(config, ranks=ranks.size)
    if config.ranks < 2 or config.groups < 1 or config.group_size < 2:
        raise InputError(
            f"ranks is {config.ranks}, groups {config.groups}, group_size {config.group_size}: take 2 or "
            "more ranks, 1 or more groups of 2 or more steps"
        )
    csv = (config.out or Path("results")) / "allgather" / "allgather.csv"
    provenance = collect(config, seed=config.seed)
    table = ranks.on_main(Table, csv, COLUMNS, KEY, provenance=provenance, fresh=config.fresh)
    wanted = [(layout, c, h) for c in (False, True) for layout in LAYOUTS for h in (False, True)]
    missing = [row for row in wanted if not ranks.on_main(table.has, **dict(zip(KEY, row, strict=True)))]
    if missing:
        note(f"allgather: counting {len(missing)} layouts on {config.ranks} ranks")
        case = (config.groups, config.group_size, config.seed, missing)
        rows = count(ranks, *case) if ranks.size > 1 else spawn(count, config.ranks, *case)[0]
        ranks.on_main(table.append, *rows, unit="all")
    return csv


def show(csv: Path) -> None:
    """Print the counts beside the paper's claim."""
    table = read(csv)
    first = table.iloc[0]
    rows = [
        (
            LAYOUTS[row.layout],
            "on" if row.checkpointing else "off",
            "held back" if row.sync_held_back else "each backward",
            row.all_gathers_forward / row.groups,
            row.all_gathers_backward / row.groups,
            REPORTED.get(row.layout, "-"),
            row.reduce_scatters_backward / row.groups,
            f"{row.gradient_error:.0e}",
        )
        for row in table.itertuples()
    ]
    print_table(
        f"Collectives per transformer block and group of W = {first.group_size} (FSDP2, {first.ranks} gloo "
        f"ranks, {first.blocks} blocks, {first.groups} groups)",
        (
            "layout",
            "checkpointing",
            "gradients reduced",
            "all-gathers, forward",
            "all-gathers, backward",
            "reported",
            "reduce-scatters",
            "gradient's error",
        ),
        rows,
        f"Reported for the joint backward: {paper.ALL_GATHERS.text}.",
    )


def markdown(csv: Path) -> str:
    """The counts as Markdown, for README, and whether the joint backward makes one all-gather."""
    table = read(csv)
    first = table.iloc[0]
    counts = table.assign(
        forward=table.all_gathers_forward / table.groups,
        backward=table.all_gathers_backward / table.groups,
        scatters=table.reduce_scatters_backward / table.groups,
    ).set_index(["layout", "checkpointing", "sync_held_back"])
    rows = []
    for layout in [name for name in LAYOUTS if (name, False, False) in counts.index]:
        each, held = counts.loc[(layout, False, False)], counts.loc[(layout, False, True)]
        numbers = (each.forward, each.backward, REPORTED.get(layout, "-"), each.scatters, held.scatters)
        rows.append((LAYOUTS[layout], *(n if isinstance(n, str) else f"{n:g}" for n in numbers)))
    return "\n\n".join(
        (
            f"Per transformer block and group of W = {first.group_size}, counted on {first.ranks} ranks, "
            f"{first.groups} groups an update, without checkpointing:",
            markdown_table(MARKDOWN_HEADINGS, rows),
            " ".join((claim_sentence(counts), checkpointing_sentence(counts))),
        )
    )


MARKDOWN_HEADINGS = (
    "layout",
    "all-gathers, forward",
    "all-gathers, backward",
    "reported",
    "reduce-scatters",
    "held back to the last backward",
)


def claim_sentence(counts: pd.DataFrame) -> str:
    """Whether the joint backward makes one all-gather, and what does."""
    joint = counts.backward[("jagg-joint", False, False)]
    text = (
        f"Reported of the joint backward: {paper.ALL_GATHERS.text}. Two graphs and one joint backward made "
        f"{joint:g} here"
    )
    if joint == 1:
        return f"{text}: this agrees."
    one = [LAYOUTS[layout] for layout in LAYOUTS if counts.backward.get((layout, False, False), None) == 1]
    made_one = f"One was made by: {'; '.join(one)}" if one else "No layout made one"
    return f"{text}: this does not agree. {made_one}."


def checkpointing_sentence(counts: pd.DataFrame) -> str:
    """Whether checkpointing changes any of the counts."""
    on, off = (counts[counts.index.get_level_values("checkpointing") == value] for value in (True, False))
    columns = ["forward", "backward", "scatters"]
    on, off = (some.droplevel("checkpointing")[columns] for some in (on, off))
    if on.empty:
        return "Checkpointing was not tried."
    changed = on.compare(off.loc[on.index]).index.get_level_values("layout").unique()
    if len(changed):
        return f"Checkpointing changes the counts of: {'; '.join(LAYOUTS[layout] for layout in changed)}."
    return "Checkpointing changes none of the counts."


REPORTED = {"exact": "W", "jagg-joint": "1"}
"""What the paper says of all-gathers in a group's backward."""


def plot(csv: Path) -> Path:
    """Redraw ``allgather.png`` beside the CSV: bars per layout, without checkpointing."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    table = read(csv)
    sns.set_theme(style="whitegrid", context="paper", palette="colorblind")
    figure, axis = plt.subplots(figsize=(8, 3.6), constrained_layout=True)
    rows = table[~table.checkpointing]
    each, held = rows[~rows.sync_held_back], rows[rows.sync_held_back]
    bars = {
        "all-gathers, forward": each.all_gathers_forward,
        "all-gathers, backward": each.all_gathers_backward,
        "reduce-scatters": each.reduce_scatters_backward,
        "reduce-scatters, held back": held.reduce_scatters_backward,
    }
    for i, (label, counts) in enumerate(bars.items()):
        places = [p + 0.2 * (i - 1.5) for p in range(len(each))]
        axis.barh(places, counts.to_numpy() / each.groups.to_numpy(), height=0.19, label=label)
    axis.axvline(
        1, color="0.3", linestyle="--", linewidth=1, label="reported: one all-gather, in the joint backward"
    )
    axis.set_yticks(range(len(each)), [LAYOUTS[layout] for layout in each.layout])
    axis.invert_yaxis()
    axis.set(
        xlabel="per block and group of steps", title="Collectives of one update under FSDP2, counted here"
    )
    axis.legend(fontsize=7)
    target = csv.with_suffix(".png")
    return save(figure, target)
