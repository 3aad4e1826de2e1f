"""Result tables: tidy CSVs that survive kill -9, resume by key, and never mix two configurations.

A table is one CSV, a row per measurement, with a provenance file ``<stem>.provenance.json`` beside it.

* The columns and their types are fixed when the table is opened, and every row is checked against them.
* Some columns form the key: no key occurs twice, and :meth:`Table.has` tells what is already measured.
* An append replaces the file in one step (temporary file, fsync, rename): a reader sees all its rows or none,
  and so does the next run after a kill. A last line that was torn elsewhere is dropped, to be measured again.
* The bytes depend on the values alone (:mod:`repro.fields`): no dates, no durations. What varies from run
  to run goes into the provenance, timings into a table of their own.
* A table whose provenance names another configuration, seed or checkpoint is refused, not resumed.
* One writer at a time: the file is locked (flock) from its first row to :meth:`Table.close`.

An append writes the whole file anew, which takes a few milliseconds up to some ten thousand rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from repro.errors import InputError
from repro.fields import KINDS, format_line, format_value, is_field, parse_line
from repro.files import write_atomically
from repro.lock import Lock
from repro.provenance import IDENTITY, Provenance, differences

if TYPE_CHECKING:
    import pandas


def provenance_path(path: Path | str) -> Path:
    """``results/m/cosine.csv`` -> ``results/m/cosine.provenance.json``."""
    return Path(path).with_suffix(".provenance.json")


def _as_json(provenance: Provenance) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(dict(provenance), default=str))
    return content


def read(path: Path | str) -> pandas.DataFrame:
    """A table as a DataFrame. Only empty fields and ``nan`` are missing: "none" is a name.

    Raises FileNotFoundError if there is no such table, ValueError if it has no rows.
    """
    import pandas

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no table at {path}; write it with `repro run`, or name another CSV")
    if len(path.read_bytes().splitlines()) < 2:
        raise InputError(f"{path} has no rows yet; fill it with `repro run`, or name another CSV")
    try:
        return pandas.read_csv(path, keep_default_na=False, na_values=["", "nan"])
    except (UnicodeDecodeError, pandas.errors.ParserError):
        raise InputError(f"{path} is no CSV of results; name one that `repro run` wrote") from None


class Table:
    """A tidy CSV, opened to add rows (a context manager, to release its lock).

    Args:
        path: the CSV; its folder is made when the first row is written.
        columns: name -> str, int, float or bool, in the order of the file.
        key_columns: the columns that identify a row. They may not be None or nan.
        provenance: what makes the rows (:func:`repro.provenance.collect`), written beside the CSV before
            its first row; a later session that adds rows is recorded there under "resumed".
        fresh: replace an existing table when the first row is there, instead of resuming it.

    Raises ValueError, in one line that says what to do, if an existing table has other columns, is damaged
    elsewhere than in its last line, comes from another configuration, seed or checkpoint, lacks its
    provenance, or is being written by another process.
    """

    def __init__(
        self,
        path: Path | str,
        columns: Mapping[str, type],
        key_columns: Sequence[str],
        *,
        provenance: Provenance,
        fresh: bool = False,
    ):
        self.path = Path(path)
        self.columns = dict(columns)
        self.key_columns = tuple(key_columns)
        self.repaired = ""
        """The torn last line that was dropped on opening; empty if there was none."""
        if unknown := [c for c in self.key_columns if c not in self.columns]:
            raise InputError(
                f"key columns {unknown} are not among the columns {list(self.columns)}; add them"
            )
        if wrong := [c for c, kind in self.columns.items() if kind not in KINDS]:
            raise InputError(f"columns {wrong} have unknown types; expected str, int, float or bool")
        self._provenance = _as_json(provenance)
        self._recorded = False
        self._fresh = fresh
        self._rows: dict[tuple[str, ...], str] = {}  # key -> line
        self._lock = Lock(self.path)
        self._lock.take()
        try:
            if not fresh:
                self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        if not self.path.exists():
            return
        *lines, torn = self.path.read_bytes().decode(errors="replace").split("\n")
        self.repaired = (
            torn  # even if it looks whole: without its line break, its last number may lack digits
        )
        if lines and lines[0] != format_line(self.columns):
            raise InputError(
                f"{self.path} has the columns {lines[0]}, expected {format_line(self.columns)}; "
                "pass another --out, or --fresh to replace it"
            )
        for number, line in enumerate(lines[1:], start=2):
            fields = dict(zip(self.columns, parse_line(line), strict=False))
            broken = len(fields) != len(parse_line(line)) or len(fields) != len(self.columns)
            broken = broken or not all(is_field(fields[c], kind) for c, kind in self.columns.items())
            key = () if broken else self._key(fields)
            if broken or key in self._rows:
                fault = "not a row of this table" if broken else f"{self.describe(key)} a second time"
                raise InputError(
                    f"{self.path} is damaged at line {number} ({fault}); "
                    "restore the file, or pass --fresh to measure everything again"
                )
            self._rows[key] = line
        if self._rows:
            self._check_provenance()

    def _check_provenance(self) -> None:
        beside = provenance_path(self.path)
        remedy = "pass another --out to keep both, or --fresh to replace it"
        try:
            there = json.loads(beside.read_text())
        except FileNotFoundError:
            raise InputError(f"{self.path} lacks {beside.name}, which tells its settings; {remedy}") from None
        except ValueError:
            raise InputError(
                f"{beside} is not readable JSON, so the table's settings are unknown; {remedy}"
            ) from None
        if found := differences(there, self._provenance):
            raise InputError(f"{self.path} was made with {'; '.join(found)}: {remedy}")

    def _key(self, fields: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(fields[c] for c in self.key_columns)

    def describe(self, key: tuple[str, ...]) -> str:
        """A key of `rows` in words, for messages."""
        return " ".join(f"{c}={v}" for c, v in zip(self.key_columns, key, strict=True))

    @property
    def rows(self) -> Mapping[tuple[str, ...], str]:
        """Key -> line, as they are in the file."""
        return MappingProxyType(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def has(self, **key: Any) -> bool:
        """Whether the row with this key is there. Raises ValueError unless given exactly the key columns."""
        if set(key) != set(self.key_columns):
            raise InputError(f"the key of {self.path.name} is {list(self.key_columns)}, got {list(key)}")
        return tuple(format_value(key[c], self.columns[c]) for c in self.key_columns) in self._rows

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows, all or none of them; on return they are on disk.

        Raises ValueError if a row's columns are not the table's, a value has the wrong type, or its key is
        there.
        """
        added: dict[tuple[str, ...], str] = {}
        for row in rows:
            key, line = self._encode(row)
            if key in self._rows or key in added:
                raise InputError(
                    f"{self.path} already has {self.describe(key)}; ask has() before measuring it again"
                )
            added[key] = line
        self._add(added)

    def adopt(self, rows: Mapping[tuple[str, ...], str], provenance: Provenance) -> None:
        """Add another table's `rows`, with keys that are not here, unchanged, and record what made them.

        All or none of them. It must be a table of these columns and the same run: `repro.merging` sees to it.
        """
        self._provenance, self._recorded = _as_json(provenance), False
        self._add(rows)

    def _add(self, added: Mapping[tuple[str, ...], str]) -> None:
        if not added:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._claim()
        if not self._recorded:
            if self._fresh:  # the old rows must not outlive their provenance, nor the name its lock
                self._write({})
            self._write_provenance()
        self._write({**self._rows, **added})

    def get(self, **key: Any) -> dict[str, str] | None:
        """The fields of the row with this key, as they are in the file; None if it is not there."""
        if not self.has(**key):
            return None
        line = self._rows[tuple(format_value(key[c], self.columns[c]) for c in self.key_columns)]
        return dict(zip(self.columns, parse_line(line), strict=True))

    def drop(self, unwanted: Callable[[dict[str, str]], bool]) -> None:
        """Remove the rows whose fields are unwanted, all in one step, so that they can be measured again."""
        kept = {
            key: line
            for key, line in self._rows.items()
            if not unwanted(dict(zip(self.columns, parse_line(line), strict=True)))
        }
        if len(kept) < len(self._rows):
            self._write(kept)

    def _write(self, rows: dict[tuple[str, ...], str]) -> None:
        lines = [format_line(self.columns), *rows.values()]
        self._lock.move(write_atomically(self.path, "".join(f"{line}\n" for line in lines), self._lock.on))
        self._rows = rows

    def _encode(self, row: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
        if set(row) != set(self.columns):
            lacks, unknown = sorted(set(self.columns) - set(row)), sorted(set(row) - set(self.columns))
            raise InputError(
                f"a row of {self.path.name} lacks the columns {lacks} and has unknown ones {unknown}"
            )
        fields = {}
        for column, kind in self.columns.items():
            try:
                fields[column] = format_value(row[column], kind)
            except ValueError as error:
                raise InputError(f"column {column!r} of {self.path.name}: {error}") from None
            if column in self.key_columns and fields[column] in ("", "nan"):
                raise InputError(
                    f"key column {column!r} of {self.path.name} is {row[column]}; it needs a value"
                )
        return self._key(fields), format_line(fields.values())

    def _write_provenance(self) -> None:
        beside = provenance_path(self.path)
        content = self._provenance
        if self._rows:
            content = json.loads(beside.read_text())
            session = {k: v for k, v in self._provenance.items() if k not in IDENTITY}
            content.setdefault("resumed", []).append({"rows_before": len(self._rows), **session})
        os.close(write_atomically(beside, json.dumps(content, indent=2) + "\n"))
        self._recorded = True

    def _claim(self) -> None:
        """Take the lock of a table that did not exist on opening."""
        if not self._lock.held:
            self._lock.take(create=True)
            if self._lock.size and not self._rows:
                self.close()
                raise self._lock.in_use()

    def close(self) -> None:
        """Release the lock. Safe to call twice."""
        self._lock.release()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()
