"""Counts how often FSDP gathers and scatters a transformer block in every layout of one update.

The paper says that the joint backward makes exactly one all-gather per module. What is counted here, by
torch's CommDebugMode on gloo ranks, are the collectives of FLUX's architecture (reduced: the numbers depend
on the graph, not on the sizes), block by block, forward and backward apart, under FSDP1 and FSDP2.
Each with a reduce-scatter after every backward, FSDP's default, and with it held back to the last one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiments.allgather.collectives import count
from experiments.allgather.config import COLUMNS, KEY, LAYOUTS, WRAPPERS, Config, check
from repro.console import note
from repro.distributed.ranks import ALONE, Ranks, spawn
from repro.provenance import collect
from repro.results import Table


def run(config: Config, ranks: Ranks = ALONE) -> Path:
    """Count what is missing of the table; returns the CSV.

    Args:
        config: its number of ranks is for one process, which starts them.
        ranks: several, as torchrun started them, count themselves.

    Raises:
        InputError: fewer than two ranks, no group, or groups without two ends.
    """
    if ranks.size > 1:
        config = replace(config, ranks=ranks.size)
    check(config)
    csv = (config.out or Path("results")) / "allgather" / "allgather.csv"
    provenance = collect(config, seed=config.seed)
    table = ranks.on_main(Table, csv, COLUMNS, KEY, provenance=provenance, fresh=config.fresh)
    wanted = [
        (wrapper, layout, checkpointing, held_back)
        for wrapper in WRAPPERS
        for checkpointing in (False, True)
        for layout in LAYOUTS
        for held_back in (False, True)
    ]
    missing = [row for row in wanted if not ranks.on_main(table.has, **dict(zip(KEY, row, strict=True)))]
    if missing:
        note(f"allgather: counting {len(missing)} updates on {config.ranks} ranks")
        case = (config.groups, config.group_size, config.seed, missing)
        rows = count(ranks, *case) if ranks.size > 1 else spawn(count, config.ranks, *case)[0]
        ranks.on_main(table.append, *rows, unit="all")
    return csv
