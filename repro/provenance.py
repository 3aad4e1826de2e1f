"""Where a result comes from: the settings, the code, the libraries and the machine that made it.

A provenance is a plain JSON mapping. Some fields say *which* result it is and must agree for a table to be
resumed: the configuration, the seed and the hashes of what was read (:data:`IDENTITY`). The rest tells how.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

Provenance: TypeAlias = Mapping[str, Any]

IDENTITY = ("config", "seed", "checkpoint_sha256", "scorer_sha256", "prompts_sha256")
"""What must agree for two sessions to be the same run."""

NOT_SETTINGS = frozenset({"out", "fresh"})
"""Fields of a configuration that say where a result goes, not what it is."""

LIBRARIES = ("torch", "diffusers", "transformers", "open_clip_torch", "numpy")

ROOT = Path(__file__).resolve().parent.parent
"""The source tree this package runs from."""


def collect(
    config: Any,
    *,
    seed: int,
    checkpoint: Path | str | None = None,
    scorer: Path | str | None = None,
    prompts: Sequence[str] = (),
    device: str = "cpu",
    ranks: int = 1,
) -> dict[str, Any]:
    """The provenance of a run that starts now.

    Args:
        config: the experiment's configuration, a dataclass or a mapping, without :data:`NOT_SETTINGS`.
        seed: the run's seed.
        checkpoint: the model's folder or file, hashed with :func:`checkpoint_sha256`; None if there is none.
        scorer: the same of the scorer that is trained on.
        prompts: hashed, too, since a file of them may change under the same name.
        device: torch's name of the device, such as "cpu" or "cuda:0".
        ranks: processes that share the run.
    """
    import torch

    commit, dirty = code_version()
    settings = {k: v for k, v in plain(config).items() if k not in NOT_SETTINGS}
    return {
        "config": settings,
        "seed": seed,
        "checkpoint_sha256": None if checkpoint is None else checkpoint_sha256(checkpoint),
        "scorer_sha256": None if scorer is None else checkpoint_sha256(scorer),
        "prompts_sha256": hashlib.sha256("\n".join(prompts).encode()).hexdigest() if prompts else None,
        "commit": commit,
        "dirty": dirty,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}},
        "device": torch.cuda.get_device_name(device) if str(device).startswith("cuda") else cpu_model(),
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "ranks": ranks,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "session": secrets.token_hex(4),
    }


def plain(value: Any) -> Any:
    """``value`` as JSON has it: dataclasses and mappings as dicts, tuples as lists, other types as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def differences(
    there: Mapping[str, Any], wanted: Mapping[str, Any], whose: str = "asked for now"
) -> list[str]:
    """The settings in which two provenances are not the same run, as "batch=4, not the 8 asked for now"."""
    leaves = (leaf for field in IDENTITY for leaf in _leaves(field, there.get(field), wanted.get(field)))
    return [f"{name}={_short(a)}, not the {_short(b)} {whose}" for name, a, b in leaves if a != b]


def _leaves(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """A setting of two sides or, where both hold settings, each of theirs."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        yield name, old, new
        return
    for key in {**old, **new}:
        yield from _leaves(key, old.get(key), new.get(key))


def _short(value: Any) -> Any:
    """A hash by its beginning, anything else as it is."""
    return f"{value[:12]}…" if re.fullmatch("[0-9a-f]{64}", str(value)) else value


def checkpoint_sha256(path: Path | str) -> str:
    """SHA-256 over a checkpoint: a file's content, or the names and contents of all files below a folder.

    Pictures, Markdown, the card (which states this hash) and caches are left out, since no result depends on
    them. Raises FileNotFoundError if there is nothing at ``path``.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}; name a folder or a file that exists")
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        name = file.relative_to(path)
        hidden = any(part.startswith((".", "__")) for part in name.parts)
        about = file.suffix.lower() in {".md", ".png", ".jpg"} or file.name == "repro_card.json"
        if not file.is_file() or hidden or about:
            continue
        with open(file, "rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(content.encode() if path.is_file() else f"{name.as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def code_version() -> tuple[str | None, bool | None]:
    """The source tree's commit, and whether its code was changed since; (None, None) outside a git checkout.

    Results and bundled weights are not code: a rewritten CSV does not make the tree dirty, and weights have
    hashes of their own.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != ROOT:
            return None, None  # installed inside somebody else's repository
        code = ("repro", "experiments", ":(exclude,glob)repro/zoo/*/**")
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *code))
    except (OSError, subprocess.SubprocessError):
        return None, None


def cpu_model() -> str:
    """The processor's name, such as "AMD EPYC 7B13"."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def command_line() -> str:
    """The command as it would be typed again."""
    spec = sys.modules["__main__"].__spec__  # of what python -m runs; a script has none
    words = ["python", "-m", spec.name.removesuffix(".__main__")] if spec else [os.path.basename(sys.argv[0])]
    return shlex.join([*words, *sys.argv[1:]])


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
