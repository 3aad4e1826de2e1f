"""Training states on disk: written whole or not at all, and never mistaken for another run's.

A checkpoint is two files, ``state-000040.pt`` with the tensors and ``state-000040.json``, its manifest, with
the run's identity and the tensors' SHA-256. Each is written under another name, synced and renamed, the
manifest last: a state without one was interrupted and does not count. The last two are kept, so that there is
an older one to fall back on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from repro.provenance import IDENTITY, Provenance

KEPT = 2
"""Checkpoints that stay when a new one is written."""


class Checkpoint(NamedTuple):
    """A state that was read back: after `step` training steps."""

    step: int
    state: dict[str, Any]


class Checkpoints:
    """The states of one run, in a folder of their own.

    Args:
        folder: made when the first state is saved.
        provenance: of the run (:func:`repro.provenance.collect`); its identity must agree to resume.
    """

    def __init__(self, folder: Path | str, provenance: Provenance) -> None:
        self.folder = Path(folder)
        identity = {field: provenance.get(field) for field in IDENTITY}
        self._identity: dict[str, Any] = json.loads(json.dumps(identity, default=str))

    def steps(self) -> list[int]:
        """Of the complete checkpoints, in ascending order."""
        manifests = self.folder.glob("state-*.json") if self.folder.is_dir() else ()
        return sorted(int(path.stem.removeprefix("state-")) for path in manifests)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the state after `step` steps; on return it is on disk, and all but the last are gone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors, manifest = self._tensors(step), self._manifest(step)
        # Where a step is saved again, its old manifest must not vouch for the new state.
        manifest.unlink(missing_ok=True)
        _replace(tensors, lambda file: torch.save(dict(state), file))
        content = {"step": step, "sha256": _sha256(tensors), **self._identity}
        _replace(manifest, lambda file: file.write((json.dumps(content, indent=2) + "\n").encode()))
        for old in self.steps()[:-KEPT]:
            self.remove(old)

    def remove(self, step: int) -> None:
        """Delete one checkpoint, its manifest first."""
        self._manifest(step).unlink(missing_ok=True)
        self._tensors(step).unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete all of them, interrupted ones too, and their folder if nothing else is in it."""
        if self.folder.is_dir():
            for path in (*self.folder.glob("state-*"), *self.folder.glob(".state-*")):
                path.unlink()
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def latest(self) -> Checkpoint | None:
        """The newest state, or None if there is none.

        Raises:
            ValueError: if it belongs to another run, or is damaged. The older one is named, not taken: to go
                back is for the user to decide.
        """
        steps = self.steps()
        if not steps:
            return None
        try:
            return self._load(steps[-1])
        except _Damage as damage:
            raise ValueError(f"{self._tensors(steps[-1])} is damaged ({damage}); {self._remedy()}") from None

    def _load(self, step: int) -> Checkpoint:
        tensors, manifest = self._tensors(step), self._manifest(step)
        try:
            there = json.loads(manifest.read_text())
            expected = there["sha256"]
        except (ValueError, KeyError, TypeError):
            raise _Damage(f"{manifest.name} is not a manifest") from None
        if others := [field for field in IDENTITY if there.get(field) != self._identity[field]]:
            raise ValueError(
                f"{tensors} belongs to another run ({_difference(others[0], there, self._identity)}): "
                "pass another --out to keep both, or --fresh to start over"
            )
        if not tensors.is_file():
            raise _Damage("the file is missing")
        if _sha256(tensors) != expected:
            raise _Damage("its content is not what was written")
        return Checkpoint(step, torch.load(tensors, map_location="cpu", weights_only=True))

    def _remedy(self) -> str:
        *older, newest = self.steps()
        for step in reversed(older):
            try:
                self._load(step)
            except (_Damage, ValueError):
                continue
            return f"delete {self._manifest(newest)} to resume from the older good one, after step {step}"
        return "there is no older good one, pass --fresh to start over"

    def _tensors(self, step: int) -> Path:
        return self.folder / f"state-{step:06d}.pt"

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


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _difference(field: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first setting in which two identities differ, as "seed=1, not the 2 asked for now"."""
    old, new = there.get(field), wanted.get(field)
    while isinstance(old, dict) and isinstance(new, dict):
        field = next(k for k in {**old, **new} if old.get(k) != new.get(k))
        old, new = old.get(field), new.get(field)
    return f"{field}={old}, not the {new} asked for now"
