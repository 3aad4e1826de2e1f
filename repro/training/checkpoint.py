"""Training states on disk: written whole or not at all, and never mistaken for another run's.

A checkpoint is two files, ``state-000040.pt`` with the tensors and ``state-000040.json``, its manifest, with
the run's identity, the tensors' SHA-256 and the rows that the run has to show so far. Each is written under
another name, synced and renamed, the manifest last: a state without one was interrupted and does not count.
The last two are kept, so that there is an older one to fall back on.

Where several ranks train, each holds a part of the tensors: in place of the one file there is a folder,
``state-000040``, into which every rank writes its part (torch.distributed.checkpoint). Any number of ranks
resumes from either.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import torch

from repro.distributed import fsdp
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.provenance import IDENTITY, Provenance, differences

Rows: TypeAlias = dict[str, list[dict[str, Any]]]
"""What a run that is not finished has to show: rows by the name of their table."""
KEPT = 2
"""Checkpoints that stay when a new one is written."""


class Checkpoint(NamedTuple):
    """A state that was read back, after `step` training steps, and the rows of these steps by table."""

    step: int
    state: dict[str, Any]
    rows: Rows


class Checkpoints:
    """The states of one run, in a folder of their own.

    Args:
        folder: made when the first state is saved.
        provenance: of the run (:func:`repro.provenance.collect`); its identity must agree to resume.
        ranks: who has a part of the state, on one file system; all of them must call `save`, `latest` and
            `clear`.
    """

    def __init__(self, folder: Path | str, provenance: Provenance, ranks: Ranks = ALONE) -> None:
        self.folder = Path(folder)
        self._ranks = ranks
        identity = {field: provenance.get(field) for field in IDENTITY}
        self._identity: dict[str, Any] = json.loads(json.dumps(identity, default=str))

    def steps(self) -> list[int]:
        """Of the complete checkpoints, in ascending order."""
        manifests = self.folder.glob("state-*.json") if self.folder.is_dir() else ()
        return sorted(int(path.stem.removeprefix("state-")) for path in manifests)

    def save(self, step: int, state: Mapping[str, Any], rows: Rows | None = None) -> None:
        """Write the state after `step` steps; on return it is on disk, and all but the last two are gone.

        Args:
            step: how many steps led to it.
            state: nested dicts of tensors and plain values.
            rows: of these steps, as JSON has them.
        """
        # Where a step is saved again, its old manifest must not vouch for the new state.
        self._ranks.on_main(self.remove, step)
        if self._ranks.size == 1:
            self.folder.mkdir(parents=True, exist_ok=True)
            _replace(self._file(step), lambda file: torch.save(dict(state), file))
        else:
            fsdp.save(self._parts(step), dict(state))
        self._ranks.on_main(self._commit, step, rows or {})

    def _commit(self, step: int, rows: Rows) -> None:
        """Write the manifest of a state that is on disk, and delete what is too old."""
        content = {"step": step, "sha256": _sha256(self._tensors(step)), **self._identity, "rows": rows}
        text = json.dumps(content) + "\n"
        _replace(self._manifest(step), lambda file: file.write(text.encode()))
        for old in self.steps()[:-KEPT]:
            self.remove(old)

    def remove(self, step: int) -> None:
        """Delete one checkpoint, its manifest first."""
        self._manifest(step).unlink(missing_ok=True)
        _delete(self._file(step))
        _delete(self._parts(step))

    def clear(self) -> None:
        """Delete all of them, interrupted ones too, and their folder if nothing else is in it."""
        self._ranks.on_main(self._clear)

    def _clear(self) -> None:
        if self.folder.is_dir():
            for path in (*self.folder.glob("state-*"), *self.folder.glob(".state-*")):
                _delete(path)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def latest(self, places: Callable[[], dict[str, Any]] = dict) -> Checkpoint | None:
        """The newest state, or None if there is none.

        Args:
            places: gives a state with the same names, whose tensors say which part of each this rank holds;
                it is overwritten. Where one process saved and one resumes it is not asked for.

        Raises:
            ValueError: if it belongs to another run, or is damaged. The older one is named, not taken: to go
                back is for the user to decide.
        """
        newest = self._ranks.on_main(self._newest)
        if newest is None:
            return None
        step, rows = newest
        if self._parts(step).is_dir():
            state = places()
            fsdp.load(self._parts(step), state)
        else:
            state = torch.load(self._file(step), map_location="cpu", weights_only=True)
            if self._ranks.size > 1:
                state = fsdp.like(state, places())
        return Checkpoint(step, state, rows)

    def _newest(self) -> tuple[int, Rows] | None:
        """The last step and its rows, if there is one, its files checked."""
        steps = self.steps()
        if not steps:
            return None
        try:
            self._check(steps[-1])
        except _Damage as damage:
            raise InputError(f"{self._tensors(steps[-1])} is damaged ({damage}); {self._remedy()}") from None
        return steps[-1], json.loads(self._manifest(steps[-1]).read_text()).get("rows", {})

    def _check(self, step: int) -> None:
        tensors, manifest = self._tensors(step), self._manifest(step)
        try:
            there = json.loads(manifest.read_text())
            expected = there["sha256"]
        except (ValueError, KeyError, TypeError):
            raise _Damage(f"{manifest.name} is not a manifest") from None
        if others := differences(there, self._identity):
            raise InputError(
                f"{tensors} belongs to another run ({others[0]}): "
                "pass another --out to keep both, or --fresh to start over"
            )
        if not tensors.exists():
            raise _Damage("the file is missing")
        if _sha256(tensors) != expected:
            raise _Damage("its content is not what was written")

    def _remedy(self) -> str:
        *older, newest = self.steps()
        for step in reversed(older):
            try:
                self._check(step)
            except (_Damage, ValueError):
                continue
            return f"delete {self._manifest(newest)} to resume from the older good one, after step {step}"
        return "there is no older good one, pass --fresh to start over"

    def _tensors(self, step: int) -> Path:
        """Where they are: in a folder if several ranks saved them."""
        return parts if (parts := self._parts(step)).is_dir() else self._file(step)

    def _file(self, step: int) -> Path:
        return self.folder / f"state-{step:06d}.pt"

    def _parts(self, step: int) -> Path:
        return self.folder / f"state-{step:06d}"

    def _manifest(self, step: int) -> Path:
        return self.folder / f"state-{step:06d}.json"


class _Damage(Exception):
    """Why a checkpoint cannot be read."""


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Put what `write` writes at `path`, in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    """Of a file, or of a folder's files and their names."""
    if path.is_dir():
        listing = "".join(f"{_sha256(file)} {file.name}\n" for file in sorted(path.iterdir()))
        return hashlib.sha256(listing.encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
