"""Result tables: tidy CSVs in which a finished unit of work is the record.

A table is one CSV, a row per measurement, with a provenance file ``<stem>.provenance.json`` beside it.

* What is measured in one piece (a training run, a round, a group of steps) is a *unit*. Its rows are appended
  as one block when it is finished: lock, read, check, write a temporary file, fsync, rename. A reader, and
  the next run after a kill, sees all of a unit's rows or none.
* Rows stand in the order of their keys, so the bytes do not depend on who finished first: any number of
  processes may fill one table. A key that is there stays as it is, so appending a block twice is appending it
  once.
* The columns and their types are fixed, and every row is checked against them. Equal values give equal bytes
  (`format_value`): no dates, no durations. What varies from run to run goes into the provenance, timings into
  a table of their own.
* A table whose provenance names another configuration, seed or checkpoint is refused, not resumed.

A name that ends in ``.csv.gz`` is compressed, to the same bytes for the same rows.
"""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from repro.console import note
from repro.errors import InputError
from repro.provenance import IDENTITY, Provenance, differences

if TYPE_CHECKING:
    import pandas

KINDS = (str, int, float, bool)
"""The types a column may have."""
Key: TypeAlias = tuple[str, ...]
Layout: TypeAlias = tuple[Mapping[str, type], Sequence[str]]
"""Columns and key columns of a table."""
HIDDEN = ".work"
"""The folder beside tables for locks and for what is in progress; git ignores it."""


# Fields


def format_value(value: Any, kind: type) -> str:
    """``value`` as a field of a column of ``kind``: ``%.9g`` floats, ``true``/``false``, nothing for None.

    NumPy scalars and zero-dimensional tensors count as their Python values. Raises ValueError if ``value``
    is not of ``kind`` (an int is welcome in a float column, nothing else is converted), or is text that is
    empty or has a line break.
    """
    if value is None:
        return ""
    if not isinstance(value, KINDS) and hasattr(value, "item"):
        value = value.item()
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and number:
        return f"{float(value) + 0.0:.9g}"  # + 0.0 turns -0.0 into 0.0
    if kind is int and number and isinstance(value, int):
        return str(int(value))
    if kind is bool and isinstance(value, bool):
        return "true" if value else "false"
    if kind is str and isinstance(value, str):
        if not value or "\n" in value or "\r" in value:
            raise ValueError(f"{value!r} is not text on one line; pass None for nothing")
        return str(value)
    raise ValueError(f"{value!r} is not of type {kind.__name__}")


def is_field(text: str, kind: type) -> bool:
    """Whether ``text`` could have been written by :func:`format_value` for a column of type ``kind``."""
    if kind is bool:
        return text in ("", "true", "false")
    try:
        return text == "" or kind(text) is not None
    except ValueError:
        return False


def format_line(fields: Iterable[str]) -> str:
    """The fields as a line of CSV, without its line break."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(fields)
    return buffer.getvalue()


# Files


def provenance_path(path: Path | str) -> Path:
    """``results/m/cosine.csv`` -> ``results/m/cosine.provenance.json``."""
    path = Path(path)
    return path.with_name(path.name.split(".")[0] + ".provenance.json")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step; its folder is made.

    Raises:
        OSError: the disk is full, or the folder may not be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def hidden(folder: Path) -> Path:
    """``folder``'s place for locks and states, made and ignored by git."""
    place = folder / HIDDEN
    if not (place / ".gitignore").exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / ".gitignore").write_text("*\n")
    return place


@contextmanager
def lock(folder: Path, name: str, wait: bool = True) -> Iterator[bool]:
    """Hold the lock called ``name`` of ``folder``; yields whether it was got, which it always is with `wait`.

    It ends with the process, however that ends; its file is never deleted. On file systems without locks it
    is off, with a warning: there it is on the user not to start a run twice.
    """
    from filelock import FileLock, Timeout

    guard = FileLock(hidden(folder) / f"{name}.lock", timeout=-1 if wait else 0)
    try:
        guard.acquire()
    except Timeout:
        yield False
        return
    except (NotImplementedError, OSError) as error:
        unsupported = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
        if isinstance(error, OSError) and error.errno not in unsupported:
            raise
        note(f"repro: {folder} has no file locks ({error}): do not start this run twice")
        yield True
        return
    try:
        yield True
    finally:
        guard.release()


def read(path: Path | str) -> pandas.DataFrame:
    """A table as a DataFrame. Only empty fields and ``nan`` are missing: "none" is a name.

    Raises FileNotFoundError if there is no such table, ValueError if it has no rows.
    """
    import pandas

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no table at {path}; write it with `repro run`, or name another CSV")
    try:
        table = pandas.read_csv(path, keep_default_na=False, na_values=["", "nan"])
    except pandas.errors.EmptyDataError:
        table = pandas.DataFrame()
    except (UnicodeDecodeError, pandas.errors.ParserError, OSError):
        raise InputError(f"{path} is no CSV of results; name one that `repro run` wrote") from None
    if table.empty:
        raise InputError(f"{path} has no rows yet; fill it with `repro run`, or name another CSV")
    return table


# Tables


class Table:
    """A tidy CSV that several processes may fill; between calls it holds no file open.

    Args:
        path: the CSV; its folder is made when the first row is written.
        columns: name -> str, int, float or bool, in the order of the file.
        key_columns: the columns that identify a row. They may not be None or nan.
        provenance: what makes the rows (:func:`repro.provenance.collect`), written beside the CSV before its
            first row. Every later session that adds rows is recorded there under "resumed", with the units
            that it made.
        fresh: replace an existing table when the first rows are there, instead of resuming it. Of several
            processes that were started so, the first that has rows replaces, the others add.

    Raises ValueError, in one line that says what to do, if an existing table has other columns, is damaged,
    comes from another configuration, seed or checkpoint, or lacks its provenance.
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
        assert set(self.key_columns) <= set(self.columns) and set(self.columns.values()) <= set(KINDS)
        self._provenance: dict[str, Any] = json.loads(json.dumps(dict(provenance), default=str))
        self._replaced = _state(self.path) if fresh else None
        self._known: tuple[Any, dict[Key, str]] = (None, {})  # what the file was like, its rows
        self._rows()

    def has(self, **key: Any) -> bool:
        """Whether the row with this key is there. Raises ValueError unless given exactly the key columns."""
        if set(key) != set(self.key_columns):
            raise ValueError(f"the key of {self.path.name} is {list(self.key_columns)}, got {list(key)}")
        return tuple(format_value(key[c], self.columns[c]) for c in self.key_columns) in self._rows()

    def __len__(self) -> int:
        return len(self._rows())

    def append(self, *rows: Mapping[str, Any], unit: str = "") -> int:
        """Add a unit's rows, all or none of them; on return they are on disk. Returns how many were new.

        Raises ValueError if a row's columns are not the table's, a value has the wrong type, or two rows have
        one key.
        """
        added: dict[Key, str] = {}
        for row in rows:
            key, line = self._encode(row)
            if key in added:
                raise ValueError(f"{self.path.name}: {self._describe(key)} twice in one block")
            added[key] = line
        return self._add(added, self._provenance, unit)

    def replace(self, *rows: Mapping[str, Any]) -> None:
        """Write the table anew from these rows, in their order, as what follows from other tables is."""
        lines = dict(self._encode(row) for row in rows)
        with lock(self.path.parent, self.path.name):
            self._write_provenance(dict(self._provenance))
            self._write(lines)

    def _add(self, added: Mapping[Key, str], provenance: dict[str, Any], unit: str) -> int:
        with lock(self.path.parent, self.path.name):
            there = self._rows()
            new = {key: line for key, line in added.items() if key not in there}
            if new:
                if not there:  # old rows must not outlive their provenance
                    self.path.unlink(missing_ok=True)
                self._record(provenance, unit, first=not there)
                ordered = sorted({**there, **new}.items(), key=lambda item: self._order(item[0]))
                self._write(dict(ordered))
            return len(new)

    def _write(self, rows: dict[Key, str]) -> None:
        text = "".join(f"{line}\n" for line in (format_line(self.columns), *rows.values())).encode()
        packed = gzip.compress(text, mtime=0) if self.path.suffix == ".gz" else text
        write_atomically(self.path, packed)

    def _order(self, key: Key) -> tuple[Any, ...]:
        return tuple(
            field if self.columns[name] in (str, bool) else self.columns[name](field)
            for name, field in zip(self.key_columns, key, strict=True)
        )

    def _rows(self) -> dict[Key, str]:
        """Key -> line, as they are in the file now; none of a table that is to be replaced."""
        state = _state(self.path)
        if state in (None, self._replaced):
            return {}
        if state != self._known[0]:
            self._known = (state, self._load())
        return self._known[1]

    def _load(self) -> dict[Key, str]:
        remedy = "restore the file, or pass --fresh to measure everything again"
        try:
            content = self.path.read_bytes()
            text = (gzip.decompress(content) if self.path.suffix == ".gz" else content).decode()
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile):
            raise InputError(f"{self.path} is damaged: {remedy}") from None
        *lines, torn = text.split("\n")
        if torn:  # without its line break a last number may lack digits
            raise InputError(f"{self.path} is damaged in its last line, {torn!r}: {remedy}")
        if lines and lines[0] != format_line(self.columns):
            raise InputError(
                f"{self.path} has the columns {lines[0]}, expected {format_line(self.columns)}; "
                "pass another --out, or --fresh to replace it"
            )
        rows: dict[Key, str] = {}
        kinds = list(self.columns.values())
        places = [list(self.columns).index(name) for name in self.key_columns]
        for number, (line, fields) in enumerate(zip(lines[1:], csv.reader(lines[1:]), strict=False), start=2):
            whole = len(fields) == len(kinds) and all(map(is_field, fields, kinds))
            key = tuple(fields[place] for place in places) if whole else ()
            if not whole or key in rows:
                fault = f"{self._describe(key)} a second time" if whole else "not a row of this table"
                raise InputError(f"{self.path} is damaged at line {number} ({fault}): {remedy}")
            rows[key] = line
        if rows:
            _check_identity(
                self.path, self._provenance, "pass another --out to keep both, or --fresh to replace it"
            )
        return rows

    def _describe(self, key: Key) -> str:
        return " ".join(f"{c}={v}" for c, v in zip(self.key_columns, key, strict=True))

    def _encode(self, row: Mapping[str, Any]) -> tuple[Key, str]:
        if set(row) != set(self.columns):
            lacks, unknown = sorted(set(self.columns) - set(row)), sorted(set(row) - set(self.columns))
            raise ValueError(
                f"a row of {self.path.name} lacks the columns {lacks} and has unknown ones {unknown}"
            )
        fields = {}
        for column, kind in self.columns.items():
            try:
                fields[column] = format_value(row[column], kind)
            except ValueError as error:
                raise ValueError(f"column {column!r} of {self.path.name}: {error}") from None
            if column in self.key_columns and fields[column] in ("", "nan"):
                raise ValueError(
                    f"key column {column!r} of {self.path.name} is {row[column]}; it needs a value"
                )
        return tuple(fields[c] for c in self.key_columns), format_line(fields.values())

    def _record(self, provenance: dict[str, Any], unit: str, first: bool) -> None:
        """Say in the provenance who made this unit."""
        made = [*provenance.get("made", []), *([unit] if unit else [])]
        if first:
            self._write_provenance({**provenance, "made": made})
            return
        content = json.loads(provenance_path(self.path).read_text())
        sessions = [content, *content.get("resumed", [])]
        mine = [s for s in sessions if s.get("session") == provenance.get("session", "")]
        if mine:
            there = mine[0].get("made", [])
            mine[0]["made"] = [*there, *(name for name in made if name not in there)]
        else:
            session = {k: v for k, v in provenance.items() if k not in IDENTITY}
            content.setdefault("resumed", []).append({**session, "made": made})
        self._write_provenance(content)

    def _write_provenance(self, content: dict[str, Any]) -> None:
        write_atomically(provenance_path(self.path), (json.dumps(content, indent=2) + "\n").encode())


def _state(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from the one that had its name before; None where there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _provenance_of(csv: Path) -> dict[str, Any]:
    """What stands beside a table.

    Raises:
        ValueError: nothing, or nothing readable.
    """
    beside = provenance_path(csv)
    try:
        content: dict[str, Any] = json.loads(beside.read_text())
    except FileNotFoundError:
        raise InputError(f"{csv} lacks {beside.name}, which tells its settings: restore it") from None
    except ValueError:
        raise InputError(
            f"{beside} is not readable JSON, so the table's settings are unknown: restore it"
        ) from None
    return content


def _check_identity(csv: Path, wanted: Provenance, remedy: str) -> None:
    try:
        there = _provenance_of(csv)
    except InputError as error:
        raise InputError(f"{error}, or {remedy}") from None
    if found := differences(there, wanted):
        raise InputError(f"{csv} was made with {'; '.join(found)}: {remedy}")


# Merging


class _Part(NamedTuple):
    """What one source gives to a table."""

    rows: dict[Key, str]
    provenance: dict[str, Any]


def merge(
    tables: Mapping[str, Layout], sources: Sequence[Path], into: Path, folders: Sequence[str] = ()
) -> dict[str, int]:
    """Put tables of different machines into one folder, and the files that it lacks of folders beside them.

    They must be one run in all that `repro.provenance.IDENTITY` names, and may not disagree on a row. Rows
    keep their bytes, sources are only read, and all is checked before the first write. (On one machine
    nothing has to be
    merged: processes share a folder.)

    Args:
        tables: name of the CSV -> its layout; the first, which should tell what is done, is written last.
        sources: folders.
        into: another one, which may hold rows already.
        folders: names of folders beside the tables whose files belong to the rows.

    Returns:
        How many rows each table gained, and how many files each folder.

    Raises:
        FileNotFoundError: a source lacks a table.
        ValueError: nothing to merge, tables of different runs, rows that disagree, a damaged table.
    """
    if not sources:
        raise InputError("there is nothing to merge: name the folders that hold the tables")
    if into.resolve() in [source.resolve() for source in sources]:
        raise InputError(f"{into} is to be merged into itself: leave it out, what it holds is kept")
    plans: dict[str, tuple[Table, list[_Part]]] = {}
    for name, layout in tables.items():
        csvs = [source / name for source in sources]
        for path in csvs:
            if not path.is_file():
                raise FileNotFoundError(
                    f"there is no table {path}: name folders that hold one, or leave it out"
                )
        like = into / name if (into / name).exists() else csvs[0]
        target = Table(into / name, *layout, provenance=_provenance_of(like))
        plans[name] = target, _parts(target, layout, csvs, like)
    copied = {name: sum(_copy(source / name, into / name) for source in sources) for name in folders}
    added = {
        name: sum(target._add(part.rows, part.provenance, "") for part in parts)
        for name, (target, parts) in reversed(plans.items())
    }
    return {name: added[name] for name in tables} | copied


def _parts(target: Table, layout: Layout, csvs: Sequence[Path], like: Path) -> list[_Part]:
    wanted = _provenance_of(like)
    seen = {key: (line, target.path) for key, line in target._rows().items()}
    parts = []
    for path in csvs:
        provenance = _provenance_of(path)
        if found := differences(provenance, wanted, whose=f"of {like}"):
            raise InputError(f"{path} was made with {'; '.join(found)}: merge tables of one configuration")
        rows = Table(path, *layout, provenance=provenance)._rows()
        for key, line in rows.items():
            there, where = seen.setdefault(key, (line, path))
            if line != there:
                raise InputError(
                    f"{path} and {where} disagree on {target._describe(key)}: leave one of them out, or "
                    "merge tables that have no rows in common"
                )
        parts.append(_Part(rows, provenance))
    return parts


def _copy(source: Path, target: Path) -> int:
    """Copy the files that are not there yet; returns how many."""
    missing = [
        f for f in sorted(source.rglob("*")) if f.is_file() and not (target / f.relative_to(source)).exists()
    ]
    for file in missing:
        write_atomically(target / file.relative_to(source), file.read_bytes())
    return len(missing)
