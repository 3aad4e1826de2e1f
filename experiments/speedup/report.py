"""The wall-clock table's section of the report: reported beside measured beside predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.common.markdown import counted, listed
from experiments.common.markdown import table as markdown_table
from experiments.convergence.arms import ALGORITHMS
from experiments.speedup.analysis import (
    AGREEMENT,
    JAGG,
    LEVEL,
    OVERHEAD_LIMIT,
    Cell,
    agreement,
    algorithms,
    base,
    base_setting,
    cells,
    coverage,
    finding,
    left_out,
    null_cells,
    reduction,
)
from experiments.speedup.config import NULL, Setting
from repro.results import read

HEADINGS = (
    "scheme",
    "% off the update, in seconds",
    "in forwards",
    "predicted",
    "% off the step",
    "predicted",
    "reported",
)


def markdown(csv: Path) -> str:
    """The paper's setting of both recipes, JAGG in the other modes, and how good model and clock are."""
    table, found = read(csv), cells(csv)
    first, rounds = table.iloc[0], int(table["round"].nunique())
    parts = [
        f"**{first['model']}** on {first['device']}, {first['dtype']}, {counted(rounds, 'round')}. Medians "
        f"of the rounds; in brackets {_interval(rounds)}."
    ]
    for algorithm in algorithms(found):
        if shown := base(found, algorithm):
            parts += _base(shown, int(first["samples"]))
    parts += [_modes(found), _agreement(found), _null(found), _unit(found)]
    return "\n\n".join(filter(None, parts))


def _interval(rounds: int) -> str:
    """What a median's interval is."""
    k = left_out(rounds)
    covered = 100 * coverage(rounds, k)
    if k:
        left = "the lowest and the highest" if k == 1 else f"the {k} lowest and the {k} highest"
        return f"their {covered:.0f} % interval, {left} left out"
    if covered >= 100 * LEVEL:
        return f"min … max, which is a {covered:.0f} % interval of the median"
    return f"min … max, too few rounds for an interval of {100 * LEVEL:.0f} %"


def _base(shown: Sequence[Cell], samples: int) -> list[str]:
    """One recipe in the paper's setting: its table, and a sentence on what was reported of it."""
    exact, others = shown[0], shown[1:]
    seconds = sum(exact.seconds.values())
    name = ALGORITHMS[exact.setting.algorithm]
    told = [
        f"Reported: {beside.reported.low:g} … {beside.reported.high:g} % off the {beside.of} with "
        f"{cell.label}; measured: {finding(beside)}. {finding(beside).why}".strip()
        for cell in others
        if (beside := reduction(cell))
    ]
    return [
        f"*{name}*, {exact}: an exact step of {samples} images takes {seconds:.3g} s, of which the update "
        f"{exact.seconds['update']:.3g} s.",
        markdown_table(HEADINGS, map(_row, others)),
        *told,
    ]


def _row(cell: Cell) -> tuple[str, ...]:
    beside = reduction(cell)
    return (
        cell.label + _mark(cell),
        cell.update.percent(),
        cell.priced.percent(),
        f"{100 * cell.predicted_update:.1f}",
        cell.step.percent(),
        f"{100 * cell.predicted_step:.1f}",
        f"{beside.of}: {beside.reported.low:g} … {beside.reported.high:g}" if beside else "-",
    )


def _mark(cell: Cell) -> str:
    """Of a scheme whose prediction cannot be held to the measurement."""
    return "" if cell.clear or cell.predicted_update == 0 else r"\*"


def _modes(found: Sequence[Cell]) -> str:
    """JAGG where one thing is other than in the paper's setting; empty if nothing else was timed."""
    rows = []
    for algorithm in algorithms(found):
        setting = base_setting(found, algorithm)
        rows += [
            (
                ALGORITHMS[algorithm],
                str(cell),
                cell.priced.percent(),
                f"{100 * cell.predicted_update:.1f}",
                cell.step.percent(),
            )
            for cell in found
            if cell.scheme == JAGG and _one_mode_apart(cell.setting, setting)
        ]
    if not rows:
        return ""
    headings = ("recipe", "setting", "% off the update, in forwards", "predicted", "% off the step")
    return f"JAGG on all groups in other modes:\n\n{markdown_table(headings, rows)}"


def _one_mode_apart(one: Setting, other: Setting) -> bool:
    """Whether two settings differ in checkpointing, weights or velocities alone."""
    differ = {name for name, value in vars(one).items() if value != getattr(other, name)}
    return len(differ) == 1 and differ <= {"checkpointing", "weights", "velocities"}


def _agreement(found: Sequence[Cell]) -> str:
    """How well the cost model did."""
    seen = agreement(found)
    covered = f", whose interval has the prediction in {len(seen.covered)} more" if seen.covered else ""
    said = [
        f"Measured and predicted ratios of updates agree within {100 * AGREEMENT:.0f} % in {len(seen.close)} "
        f"of {counted(len(seen.clear), 'cell')} in forwards, in {len(seen.close_in_seconds)} in "
        f"seconds{covered}."
    ]
    if seen.clear:
        furthest = max(seen.clear, key=lambda cell: abs(cell.error))
        said.append(f"Furthest apart in forwards: {_error(furthest)}.")
    if seen.marked:
        worst = max(seen.marked, key=lambda cell: abs(cell.error))
        said.append(
            f"{counted(len(seen.marked), 'more cell')}, marked \\*, with more than "
            f"{100 * OVERHEAD_LIMIT:.0f} % that the model leaves out, furthest apart: {_error(worst)}."
        )
    return " ".join(said)


def _error(cell: Cell) -> str:
    recipe = ALGORITHMS[cell.setting.algorithm]
    return f"{100 * cell.error:+.1f} % ({cell.label}; {recipe}, {cell})"


def _null(found: Sequence[Cell]) -> str:
    """How far the clock errs."""
    if not (null := null_cells(found)):
        return ""
    wrong = [cell for cell in null if not cell.update.low <= 0 <= cell.update.high]
    seconds, forwards = ([100 * x.value for x in values] for values in _columns(null))
    arm = "exact again under another name among them, " if any(c.scheme == NULL for c in null) else ""
    return (
        f"Where a scheme makes exact's very passes ({counted(len(null), 'cell')}, {arm}medians), its update "
        f"came out {min(seconds):+.1f} … {max(seconds):+.1f} % shorter in seconds and {min(forwards):+.1f} … "
        f"{max(forwards):+.1f} % in forwards: so far the clock errs. {len(wrong)} of these intervals in "
        "seconds leave 0 out."
    )


def _columns(null: Sequence[Cell]) -> tuple[list, list]:
    return [cell.update for cell in null], [cell.priced for cell in null]


def _unit(found: Sequence[Cell]) -> str:
    """b, and the core's own work."""
    factors = []
    for weights, name in (("full", "all weights"), ("lora", "LoRA")):
        if values := [cell.backward for cell in found if cell.setting.weights == weights]:
            factors.append(f"{min(values):.2f} … {max(values):.2f} with {name}")
    overheads = [100 * cell.overhead for cell in found]
    return (
        f"A backward costs b forwards, min … max over the settings: {listed(factors)}. The core's own work "
        f"is {min(overheads):.1f} … {max(overheads):.1f} % of an update."
    )
