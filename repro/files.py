"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, content: str, prepare: Callable[[int], None] | None = None) -> int:
    """Replace ``path`` in one step, after ``prepare(fd)``. Returns the new file's open descriptor.

    Raises:
        OSError: the disk is full, or the folder is missing or may not be written to.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        if prepare is not None:
            prepare(fd)
        with open(fd, "w", encoding="utf-8", newline="", closefd=False) as file:
            file.write(content)
        os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        os.close(fd)
        raise
    return fd
