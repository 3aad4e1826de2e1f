"""Tables that were measured in parallel, each in a folder of its own, put into one folder.

An experiment whose tables may be merged has ``TABLES``: stem of the CSV -> its columns and its key columns,
and it may have ``MERGED_FOLDERS``: names of folders beside the CSVs whose files belong to the rows.

* What is merged must be one run in all that :data:`repro.provenance.IDENTITY` names.
* Rows keep their bytes. Those that are there already are left alone; a row of the same key with another
  content is refused.
* The target's provenance names the sessions of every folder that gave rows, as if they had resumed it.
* Sources are only read. A row of an unfinished measurement is merged as any other.
* Everything is checked before the first write. A merge that is killed is finished by repeating it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from repro.errors import InputError
from repro.provenance import differences
from repro.results import Table, provenance_path

Layout: TypeAlias = tuple[Mapping[str, type], Sequence[str]]
"""Columns and key columns of a table."""


class Addition(NamedTuple):
    """What one source gives to a table."""

    rows: dict[tuple[str, ...], str]
    provenance: dict[str, Any]


def merge(
    tables: Mapping[str, Layout], sources: Sequence[Path], into: Path, folders: Sequence[str] = ()
) -> dict[str, int]:
    """Put the tables of all sources into one folder, and the files that it lacks of the folders beside them.

    The first of the tables should be the one that tells what is done: it is written last.

    Returns:
        How many rows each table gained, and how many files each folder.

    Raises:
        FileNotFoundError: a source lacks a table.
        ValueError: nothing to merge, tables of different runs, rows that disagree, a table that is damaged,
            lacks its provenance or is being written.
    """
    if not sources:
        raise InputError("there is nothing to merge: name the folders that hold the tables")
    if into.resolve() in [source.resolve() for source in sources]:
        raise InputError(f"{into} is to be merged into itself: leave it out, what it holds is kept")
    with ExitStack() as locks:
        plans = {}
        for name, layout in tables.items():
            csvs = [source / f"{name}.csv" for source in sources]
            table = locks.enter_context(_open_target(into / f"{name}.csv", layout, csvs[0]))
            plans[name] = table, _plan(table, layout, csvs)
        files = {name: sum(_copy(source / name, into / name) for source in sources) for name in folders}
        for table, additions in reversed(plans.values()):
            for addition in additions:
                table.adopt(addition.rows, addition.provenance)
    rows = {name: sum(len(a.rows) for a in additions) for name, (_, additions) in plans.items()}
    return {**rows, **files}


def _open_target(path: Path, layout: Layout, like: Path) -> Table:
    """The table at ``path``; where there is none, one of the same run as ``like``."""
    return Table(path, *layout, provenance=_provenance(path if path.exists() else like))


def _plan(table: Table, layout: Layout, csvs: Sequence[Path]) -> list[Addition]:
    """What each source has that the table and the sources before it lack."""
    first = table.path if table.path.exists() else csvs[0]
    wanted = _provenance(first)
    seen = {key: (line, table.path) for key, line in table.rows.items()}
    additions = []
    for csv in csvs:
        provenance = _provenance(csv)
        if found := differences(provenance, wanted, whose=f"of {first}"):
            raise InputError(f"{csv} was made with {'; '.join(found)}: merge tables of one configuration")
        with Table(csv, *layout, provenance=provenance) as source:
            rows = source.rows
        for key, line in rows.items():
            there, where = seen.get(key, (line, csv))
            if line != there:
                raise InputError(
                    f"{csv} and {where} disagree on {table.describe(key)}: leave one of them out, or merge "
                    "tables that have no rows in common"
                )
        additions.append(Addition({k: line for k, line in rows.items() if k not in seen}, provenance))
        seen |= {key: (line, csv) for key, line in additions[-1].rows.items()}
    return additions


def _provenance(csv: Path) -> dict[str, Any]:
    beside = provenance_path(csv)
    if not csv.is_file():
        raise FileNotFoundError(f"there is no table {csv}: name folders that hold one, or leave this one out")
    try:
        content: dict[str, Any] = json.loads(beside.read_text())
    except FileNotFoundError:
        raise InputError(
            f"{csv} lacks {beside.name}, which tells its settings: restore it, or leave this folder out"
        ) from None
    except ValueError:
        raise InputError(
            f"{beside} is not readable JSON, so the table's settings are unknown: restore it, or leave this "
            "folder out"
        ) from None
    return content


def _copy(source: Path, target: Path) -> int:
    """Copy the files that are not there yet, each in one step; returns how many."""
    copied = 0
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        there = target / file.relative_to(source)
        if not there.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            temporary = there.with_name(f".{there.name}.tmp")
            shutil.copyfile(file, temporary)
            os.replace(temporary, there)
            copied += 1
    return copied
