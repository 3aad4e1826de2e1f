"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str, prepare: Any = None) -> int:
    """Replace ``path`` in one step, after ``prepare(fd)``. Returns the new file's open descriptor."""
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
