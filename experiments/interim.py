"""Findings of tables whose own ``analysis.findings`` has not landed yet; goes table by table as they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments import paper
from experiments.common.findings import Finding, Judgement


def speedup(csv: Path) -> dict[str, Finding]:
    """Of the two cells that were reported, in the paper's mode at the largest batch."""
    from experiments.speedup.analysis import cells
    from experiments.speedup.report import PAPER_MODE, REPORTED, mode

    whys = {
        "step": "What a step spends outside the update differs with model and machine.",
        "update": "The reported phase may contain more than the passes (optimizer, advantages, "
        "communication: the paper's summary does not say), which would pull the saving towards the "
        "reported one.",
    }
    group = (int(paper.GROUP_SIZE.low), 2)
    found: dict[str, Finding] = {}
    for cell in sorted(cells(csv), key=lambda c: c.of("batch")):
        kind, reported = REPORTED.get((cell.of("algorithm"), cell.scheme), ("", None))
        if (
            reported
            and mode(cell) == PAPER_MODE
            and (cell.of("group_size"), cell.of("anchor_chunk")) == group
        ):
            value, low, high = (100 * x for x in (cell.step if kind == "step" else cell.priced))
            predicted = 100 * (cell.predicted_step if kind == "step" else cell.predicted_update)
            judgement = _against(value, low, high, reported)
            text = f"{value:.1f} % ({low:.1f} … {high:.1f}; cost model {predicted:.1f})"
            found[kind] = Finding(text, judgement, whys[kind] if judgement is Judgement.DISAGREES else "")
    return found


def _against(value: float, low: float, high: float, reported: paper.Quantity) -> Judgement:
    if reported.low <= value <= reported.high:
        return Judgement.AGREES
    apart = high < reported.low or low > reported.high
    return Judgement.DISAGREES if apart else Judgement.NOT_CONTRADICTED


FINDINGS: dict[str, Callable[[Path], dict[str, Finding]]] = {f.__name__: f for f in (speedup,)}
