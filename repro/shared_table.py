"""A result table that all ranks ask and fill together, and rank 0 alone holds.

Other ranks neither open the file nor lock it: they may run on another machine. What rank 0 answers, or
refuses, is every rank's answer, so that all go the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from repro.distributed.ranks import Ranks
from repro.results import Table


class SharedTable:
    """See the module; a context manager, as `repro.results.Table` is.

    Args:
        ranks: who shares it.
        path: the CSV.
        args, kwargs: as `Table`'s, on every rank the same.

    Raises ValueError, on every rank, where `Table` does.
    """

    def __init__(self, ranks: Ranks, path: Path, *args: Any, **kwargs: Any) -> None:
        self.path = path
        self._ranks = ranks
        self._table: Table | None = None

        def open_table() -> None:
            self._table = Table(path, *args, **kwargs)

        ranks.on_main(open_table)

    @property
    def _own(self) -> Table:
        assert self._table is not None, "rank 0 alone is asked"
        return self._table

    def has(self, **key: Any) -> bool:
        """Whether the row with this key is there; all ranks ask for the same."""
        return self._ranks.on_main(lambda: self._own.has(**key))

    def get(self, **key: Any) -> dict[str, str] | None:
        """The row with this key; all ranks ask for the same."""
        return self._ranks.on_main(lambda: self._own.get(**key))

    def drop(self, unwanted: Callable[[dict[str, str]], bool]) -> None:
        """Remove the unwanted rows."""
        self._ranks.on_main(lambda: self._own.drop(unwanted))

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows; rank 0's are written. On return they are on disk."""
        self._ranks.on_main(lambda: self._own.append(*rows))

    def __enter__(self) -> SharedTable:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._table is not None:
            self._table.close()
