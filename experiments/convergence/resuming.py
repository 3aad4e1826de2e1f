"""What the tables must hold where a training run goes on, and what gives way to steps that are made again."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from experiments.convergence.arms import Cell
from repro.errors import InputError
from repro.fields import format_value
from repro.results import provenance_path
from repro.training.metrics import METRICS

if TYPE_CHECKING:
    from experiments.convergence.training import Work


def require_rows(work: Work, cell: Cell, saved: int) -> None:
    """Refuse to go on from the state after ``saved`` steps if rows up to it are missing: they would stay so.

    Raises:
        ValueError: the first step that a table lacks.
    """
    if not saved:
        return
    trained = work.tables.training.has
    lacking = [step for step in range(1, saved + 1) if not trained(**cell._asdict(), step=step)]
    lacking += [step for step in range(saved + 1) if work.due(cell, step) and not work.done(cell, step)]
    if lacking:
        raise InputError(
            f"{cell.name} has a state after step {saved}, but the tables in {work.folder} lack its step "
            f"{min(lacking)}: restore them, or pass --fresh to train everything again"
        )


PLACE = ("cpu", "threads", "ranks")
"""Where these are equal, so is every bit of a step that is made again."""
MEASURED = frozenset(name for name, kind in METRICS.items() if kind is float) - {"learning_rate"}
"""What rounds otherwise elsewhere."""


def _elsewhere(work: Work) -> bool:
    """Whether a part of the table was made on another machine, or by another number of threads or ranks."""
    made = json.loads(provenance_path(work.tables.training.path).read_text())
    sessions = [made, *made.get("resumed", [])]
    return any(session.get(k) != work.provenance.get(k) for session in sessions for k in PLACE)


def _close(new: dict[str, str], old: dict[str, str], name: str) -> bool:
    """Whether two fields are equal or, of measurements, as near as rounding leaves them after a few steps."""
    if new[name] == old[name] or name not in MEASURED or "" in (new[name], old[name]):
        return new[name] == old[name]
    return math.isclose(float(new[name]), float(old[name]), rel_tol=1e-2, abs_tol=2e-3)


def make_way(work: Work, cell: Cell, row: dict[str, Any]) -> None:
    """Compare a step with its stored row, if there is one.

    A step that was skipped for a fault and now trains makes the rows after it another run's: all of them are
    dropped, to be made again. Otherwise stored rows stay: to the bit where they were made like this, up to
    rounding on another machine or number of threads or ranks, and, where kernels round differently each time,
    off the CPU, up to what grows from it.

    Raises:
        ValueError: the step came out otherwise than before, without a fault.
    """
    tables, step = work.tables, row["step"]
    key = cell._asdict()
    kinds = {**{name: type(value) for name, value in key.items()}, **METRICS}
    new = {name: format_value(row[name], kind) for name, kind in kinds.items()}
    old = tables.training.get(**key, step=step)
    if old is None or old == new:
        return
    if old["fault"]:
        mine = [(name, new[name]) for name in key]
        for table in (
            tables.evaluations,
            tables.timings,
            tables.training,
        ):  # the fault last: it tells of this
            table.drop(lambda row: all(row[k] == v for k, v in mine) and int(row["step"]) >= step)
    elif work.config.device == "cpu":
        near = _elsewhere(work)
        other = [n for n in new if new[n] != old[n] and not (near and _close(new, old, n))]
        if not other:
            return
        name = other[0]
        raise InputError(
            f"step {step} of {cell.name} was made again with {name}={new[name]}, not the {old[name]} in "
            f"{tables.training.path}: use the code, machine and threads it came from, or pass --fresh"
        )
