"""One writer at a time: an exclusive lock (flock) on a file that is replaced at every write.

The lock is the file's, not the name's: a new file is locked before it takes the old one's name, and whoever
locked a file looks again whether it still has the name.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock: there it is on the user not to start a run twice
    fcntl = None  # type: ignore[assignment]


class Lock:
    """Of the file called `path`, free until `take`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this has it."""
        return self._fd is not None

    @property
    def size(self) -> int:
        """Bytes of the locked file, 0 if none is."""
        return 0 if self._fd is None else os.fstat(self._fd).st_size

    def in_use(self) -> ValueError:
        """What to raise where another process has it."""
        return ValueError(
            f"another process is writing {self.path}; wait for it to end, or pass another --out"
        )

    def on(self, fd: int) -> None:
        """Lock an open file, such as one that is about to take the name.

        Raises:
            ValueError: another process has it.
        """
        if fcntl is None:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self.in_use() from None
        except OSError:
            pass  # some cluster file systems have no locks: there it is on the user not to start a run twice

    def take(self, create: bool = False) -> None:
        """Lock the file of that name; without `create` nothing if there is none.

        Raises:
            ValueError: another process has it.
        """
        while create or self.path.exists():
            self._fd = os.open(self.path, os.O_RDWR | (os.O_CREAT if create else 0), 0o666)
            try:
                self.on(self._fd)
                if os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                    return
            except FileNotFoundError:
                pass
            except BaseException:
                self.release()
                raise
            self.release()  # replaced or deleted between our open and our lock: look again

    def move(self, fd: int) -> None:
        """Hold the file that took the name, locked already, in place of the old one."""
        self.release()
        self._fd = fd

    def release(self) -> None:
        """Let go; safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
