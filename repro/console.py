"""What a person sees of a run: progress on stderr, tables on stdout, plain text without a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

PLAIN_WIDTH = 120
"""Columns assumed where there is no terminal to ask."""

PLAIN_SECONDS = 15.0
"""The least time between two progress lines where there is no terminal."""


def note(message: str) -> None:
    """A line for the person watching, on stderr."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def silent() -> Iterator[None]:
    """Nothing is printed within this context."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@contextmanager
def progress(description: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """A progress bar with the time left, on stderr; a line every now and then where stderr is no terminal.

    Args:
        description: what is being counted.
        total: units of work in all.
        done: units that were there already, from a run that is resumed.

    Yields ``advance(units=1, note="")``: these units are done; the note, such as the cell, is shown beside
    the bar.
    """
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(description, total=total, completed=done, note="")
            yield lambda units=1, note="": bar.update(task, advance=units, note=note)
        return

    print(f"{description}: {done}/{total}", file=sys.stderr, flush=True)
    start = shown = time.monotonic()
    count = done

    def advance(units: int = 1, note: str = "") -> None:
        nonlocal count, shown
        count += units
        now = time.monotonic()
        if now - shown >= PLAIN_SECONDS or count >= total:
            shown = now
            left = (now - start) / max(count - done, 1) * (total - count)
            line = f"{description}: {count}/{total}, {_clock(now - start)} elapsed, {_clock(left)} left"
            print(f"{line}  {note}".rstrip(), file=sys.stderr, flush=True)

    yield advance


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = ""
) -> None:
    """A table on stdout; floats with four digits, columns that hold only numbers to the right."""
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    table = Table(title=title, caption=caption or None, title_justify="left", caption_justify="left")
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(table, markup=False)


def print_markdown(text: str) -> None:
    """Markdown on stdout, as a terminal shows it."""
    from rich.markdown import Markdown

    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(Markdown(text))


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
