"""Live curves in TensorBoard or Weights & Biases, only where asked for; the CSVs are the record."""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from repro.errors import InputError

LogKind: TypeAlias = Literal["none", "tensorboard", "wandb"]
Log: TypeAlias = Callable[[int, Mapping[str, Any]], None]


def check(kind: LogKind) -> None:
    """Refuse a kind whose library is not installed.

    Raises:
        ValueError: with the command that installs it.
    """
    if kind != "none" and importlib.util.find_spec(kind) is None:
        raise InputError(f"log {kind} needs a library that is not here: pip install {kind}, or log none")


@contextmanager
def open_log(
    kind: LogKind, folder: Path, name: str, config: Mapping[str, Any], done: int = 0
) -> Iterator[Log]:
    """``log(step, values)`` for one run; draws the finite numbers among the values.

    Args:
        kind: where to.
        folder: of the logs of all runs of a results folder. Runs in other folders are other runs.
        name: of the run in it.
        config: kept with the run.
        done: steps that a resumed run has behind it; what was drawn after them is drawn anew.
    """
    check(kind)
    if kind == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / name), purge_step=done + 1 if done else None) as writer:

            def write(step: int, values: Mapping[str, Any]) -> None:
                for key, value in _numbers(values).items():
                    writer.add_scalar(key, value, step)

            yield write
    elif kind == "wandb":
        import wandb

        place = folder.resolve().parent
        digest = hashlib.sha256(f"{place}/{name}".encode()).hexdigest()[:16]
        with wandb.init(
            project="repro",
            name=f"{place.name}-{name}",
            id=digest,
            resume="allow",
            dir=folder,
            config=dict(config),
        ) as run:
            yield lambda step, values: run.log(_numbers(values), step=step)
    else:
        yield lambda step, values: None


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in values.items() if isinstance(v, (int, float)) and math.isfinite(v)}
