"""Where a model's files are: bundled with this package, in a local folder, or on the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repro.errors import InputError


def locate(source: str | Path, what: str) -> Path | None:
    """The local file or folder that `source` names, or None if it can only be a hub id.

    Args:
        source: a bundled name, a path, or a hub id (owner/name). A path that exists wins over a hub id.
        what: what is looked for, for the error message.

    Raises:
        ValueError: it is none of the three.
    """
    from repro import zoo

    name = str(source)
    bundled = zoo.resolve(name)
    if bundled is not None:
        return bundled
    path = Path(name).expanduser()
    if path.exists():
        return path
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    raise InputError(f"no {what} {name}: pass a bundled name, an existing path or a hub id (owner/name)")


def download(repo: str, filename: str) -> Path:
    """One file of a hub repository, from the cache or over the network.

    Raises:
        ValueError: in one line, what went wrong and what to check.
    """
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repo, filename))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{repo} is no local path, and the hub gave no {filename} ({first_line(error)}): check the name, "
            "the network and, for a gated model, your login (hf auth login)"
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """No loading bars from diffusers and transformers: small models are loaded before one is drawn."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    shown = [log for log in (diffusers_logging, transformers_logging) if log.is_progress_bar_enabled()]
    for log in shown:
        log.disable_progress_bar()
    try:
        yield
    finally:
        for log in shown:
            log.enable_progress_bar()
