"""The command ``repro``: ``run TABLE`` measures a table, draws it and prints its report; ``plot TABLE``
redraws it; ``merge TABLE`` puts what several machines measured into one folder; ``report`` writes it down.

A table is a package: ``config`` (its options, and what a run of them is about to do, without torch),
``measure`` (the run), ``report`` and ``figure``. `TABLES` lists them; only what is asked for is imported, and
torch not before everything that can be refused without it has been.

``torchrun --nproc_per_node N -m repro run TABLE ...`` runs it on N ranks (`repro.distributed.ranks`): rank 0
writes and prints.

Exit status: 0 done; 2 bad input, with what is wrong and what to do on stderr; 130 interrupted (what is
finished is kept: the same command resumes). Anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tyro

from repro.console import note, print_markdown, silent
from repro.errors import InputError

TABLES = {
    "cosine": "How close each scheme's gradient is to the exact one, per group.",
    "convergence": "Whether each scheme's reward follows the exact one's over training.",
    "ablation": "What interpolating is worth: schemes against each other, paired by seed.",
    "speedup": "Time per training step, scheme by scheme, beside the cost model's prediction.",
    "allgather": "All-gathers and reduce-scatters of an update under FSDP1 and FSDP2, layout by layout.",
}

HELP = """usage: repro [--threads N] COMMAND ...

The JAGG paper's tables, one command each.

  repro run TABLE [options]              measure a table, or go on with it; draw and print it
  repro plot TABLE [CSV ...]             draw its figures again, from CSVs (all in results/ unless given)
  repro merge TABLE FOLDER ... --into FOLDER
                                         put what several machines measured into one folder
  repro report [--results FOLDER]        write REPORT.md and report.html of a folder of results

--threads N sets the CPU threads of each process. A command followed by --help shows its options.

tables:
{tables}"""

BAD_PATHS = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
Options = TypeVar("Options")


@dataclass(frozen=True)
class PlotOptions:
    """Draw a table's figures again, from its CSV alone."""

    csv: tyro.conf.Positional[tuple[Path, ...]] = ()
    """all of this table in results/ unless given"""


@dataclass(frozen=True)
class MergeOptions:
    """Put tables that several machines measured, each with an --out of its own, into one folder. They must
    have one configuration and may not disagree on a row; all is checked before the first write."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """hold the CSVs, and stay as they are"""
    into: Path
    """where the rows go; it may hold some already"""


@dataclass(frozen=True)
class ReportOptions:
    """Write REPORT.md and report.html from the CSVs of a folder, and print their summary."""

    results: Path = Path("results")
    """holds a folder for each model"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (the process's own by default); returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Whatever is said of the command line, rank 0 says.
    told = silent() if os.environ.get("RANK", "0") != "0" else contextlib.nullcontext()
    try:
        with told:
            threads = _take_threads(words)
            work = understood(words)
        if threads:
            import torch

            torch.set_num_threads(threads)
        work()
        return 0
    except SystemExit as stop:  # tyro's: 0 after its help, 2 after it told what is wrong
        return int(stop.code or 0)
    except KeyboardInterrupt:
        note("repro: interrupted; finished rows are kept, rerun the same command (without --fresh) to resume")
        return 130
    except BrokenPipeError:  # `repro ... | head`: nobody reads on, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except RuntimeError as error:
        if not re.search("allocate memory|out of memory", str(error)):
            raise
        note("repro: out of memory; take a smaller --size, fewer --images or a --micro-batch")
        return 2
    except (InputError, *BAD_PATHS) as error:
        note("repro: " + " ".join(str(error).split()))
        return 2


def understood(words: Sequence[str]) -> Callable[[], None]:
    """What the words of a command line ask for, refused or announced, not yet done.

    Raises:
        InputError: they ask for nothing that there is.
        SystemExit: tyro's, after --help or over an option.
    """
    match words:
        case [] | ["-h" | "--help", *_]:
            tables = "\n".join(f"  {name:12} {summary}" for name, summary in TABLES.items())
            return partial(print, HELP.format(tables=tables))
        case ["run" | "plot" | "merge" as command]:
            raise InputError(f"repro {command} what? Expected one of {', '.join(TABLES)}")
        case ["run" | "plot" | "merge", table, *_] if table not in TABLES:
            raise InputError(f"there is no table {table}: expected one of {', '.join(TABLES)}")
        case ["run", table, *rest]:
            settings = _of(table, "config")
            config = _parse(settings.Config, f"repro run {table}", rest, settings.default(rest))
            note(f"{table}: {settings.outline(config)}")
            return partial(run, table, config)
        case ["plot", table, *rest]:
            return partial(plot, table, _parse(PlotOptions, f"repro plot {table}", rest))
        case ["merge", table, *rest]:
            return partial(merge, table, _parse(MergeOptions, f"repro merge {table}", rest))
        case ["report", *rest]:
            return partial(report, _parse(ReportOptions, "repro report", rest))
        case _:
            raise InputError(
                f"there is no command {words[0]}: expected run, plot, merge or report (see `repro --help`)"
            )


def run(table: str, config: Any) -> None:
    """Measure a table, or finish one that was interrupted, draw its figures and print its report."""
    from repro.distributed.ranks import joined

    with joined(getattr(config, "device", "cpu")) as ranks:
        csv = _of(table, "measure").run(config, ranks)
        if ranks.main:
            figure = _of(table, "figure").plot(csv)
            print_markdown(_of(table, "report").markdown(csv))
            print(f"table   {csv}\nfigure  {figure}")


def plot(table: str, options: PlotOptions) -> None:
    """Draw a table's figures again."""
    again = f"write one with `repro run {table}` or name another CSV"
    there = sorted(Path("results").glob(f"**/{table}.csv"))
    csvs = options.csv or tuple(csv for csv in there if "quick" not in csv.parts)
    if not csvs:
        raise FileNotFoundError(f"there is no {table}.csv in results/ here; {again}")
    for csv in csvs:
        if not csv.is_file():
            raise FileNotFoundError(f"there is no table {csv}; {again}")
    for csv in csvs:
        print(f"figure  {_of(table, 'figure').plot(csv)}")


def merge(table: str, options: MergeOptions) -> None:
    """Put what several machines measured into one folder."""
    from repro import results

    measure = _of(table, "measure")
    if not hasattr(measure, "TABLES"):
        raise InputError(f"{table} has no tables that can be merged: run it in one folder")
    folders = getattr(measure, "MERGED_FOLDERS", ())
    added = results.merge(measure.TABLES, options.folders, options.into, folders)
    print(f"merged  {options.into}: {', '.join(f'{name} +{count}' for name, count in added.items())}")


def report(options: ReportOptions) -> None:
    """Write down what a folder of results says."""
    from experiments import report as writing

    pages = writing.write(options.results)
    writing.print_summary(options.results)
    print("report  " + "\nreport  ".join(map(str, pages)))


def _of(table: str, part: str) -> Any:
    """A module of a table's package."""
    return importlib.import_module(f"experiments.{table}.{part}")


def _parse(options: type[Options], prog: str, words: Sequence[str], default: Any = None) -> Options:
    """The options that the words give; tyro ends the process after --help, and where they are wrong."""
    given: dict[str, Any] = {} if default is None else {"default": default}
    with warnings.catch_warnings(action="ignore"):
        return tyro.cli(
            options,
            args=words,
            prog=prog,
            config=(tyro.conf.OmitArgPrefixes,),
            **given,
        )


def _take_threads(words: list[str]) -> int:
    """The value of --threads, which may stand anywhere and is taken out of the words; 0 without it."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name != "--threads":
            continue
        value = value if equals else "".join(words[at + 1 : at + 2])
        del words[at : at + (1 if equals else 2)]
        if not value.isdecimal() or not int(value):
            raise InputError(f"--threads is {value or 'empty'}, expected 1 or more CPU threads a process")
        return int(value)
    return 0
