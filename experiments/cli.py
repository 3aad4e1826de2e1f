"""The command ``repro``: ``repro run EXPERIMENT`` measures a table and draws it, ``repro plot EXPERIMENT``
redraws it, ``repro merge EXPERIMENT`` puts tables that were measured in parallel into one.

An experiment is a module with ``Config`` (a dataclass, whose fields become options), ``run(config, ranks) ->
Path`` of the CSV and ``plot(csv) -> Path`` of the figure; what may be merged, :func:`repro.results.merge`
tells. :data:`EXPERIMENTS` lists them; only the one asked for is imported.

``torchrun --nproc_per_node N -m repro run EXPERIMENT ...`` runs it on N ranks (`repro.distributed.ranks`):
rank 0 writes and prints.

Exit status: 0 done; 2 bad input, with one line on stderr that says what is wrong and what to do; 130
interrupted (the rows written so far are kept: the same command resumes). Anything else is a bug and shows
its traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union

import tyro

from repro.console import note, print_markdown, silent
from repro.errors import InputError
from repro.provenance import ROOT
from repro.results import merge


class Experiment(NamedTuple):
    """Where an experiment lives, and what it is in one line."""

    module: str
    summary: str


EXPERIMENTS = {
    "cosine": Experiment(
        "experiments.cosine.measure",
        "How close each scheme's gradient is to the exact one, per group.",
    ),
    "convergence": Experiment(
        "experiments.convergence.measure",
        "Whether each scheme's reward follows the exact one's over training.",
    ),
    "ablation": Experiment(
        "experiments.ablation.measure",
        "What interpolating is worth: schemes against each other, paired by seed.",
    ),
    "speedup": Experiment(
        "experiments.speedup.measure",
        "Time per training step, scheme by scheme, beside the cost model's prediction.",
    ),
    "allgather": Experiment(
        "experiments.allgather.measure",
        "All-gathers and reduce-scatters of an update under FSDP1 and FSDP2, layout by layout.",
    ),
}

PACKAGES = tuple(f"{ROOT / name}{os.sep}" for name in ("repro", "experiments"))
"""A ValueError raised in these folders was written for the user; one from elsewhere is a bug."""

BAD_PATHS = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (the process's own by default); returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        # Whatever is said of the command line, rank 0 says.
        with silent() if os.environ.get("RANK", "0") != "0" else contextlib.nullcontext():
            call = _parse(arguments)
        if isinstance(call, int):
            return call
        if call.threads:
            import torch

            torch.set_num_threads(call.threads)
        call.command.execute()
        return 0
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
    except (ValueError, OSError) as error:
        if not _is_for_the_user(error):
            raise
        note("repro: " + " ".join(str(error).split()))
        return 2


def _is_for_the_user(error: BaseException) -> bool:
    if isinstance(error, BAD_PATHS):
        return True
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, ValueError) and str(Path(innermost).resolve()).startswith(PACKAGES)


def _figure(experiment: str) -> Any:
    return importlib.import_module(f"experiments.{experiment}.figure")


class Run:
    """Measure an experiment's table, or finish one that was interrupted, and draw its figure.

    On N GPUs: torchrun --nproc_per_node N -m repro run ... --device cuda
    """

    experiment: str
    config: Any

    def execute(self) -> None:
        from repro.distributed.ranks import joined

        module = importlib.import_module(EXPERIMENTS[self.experiment].module)
        with joined(getattr(self.config, "device", "cpu")) as ranks:
            csv = module.run(self.config, ranks)
            if ranks.main:
                report = importlib.import_module(f"experiments.{self.experiment}.report")
                print_markdown(report.markdown(csv))
                print(f"table   {csv}\nfigure  {_figure(self.experiment).plot(csv)}")


class Plot:
    """Draw an experiment's figure again, from its CSV alone."""

    experiment: str
    csv: tuple[Path, ...]

    def execute(self) -> None:
        again = f"write one with `repro run {self.experiment}` or name another CSV"
        there = sorted(Path("results").glob(f"**/{self.experiment}.csv"))
        tables = self.csv or tuple(csv for csv in there if "quick" not in csv.parts)
        if not tables:
            raise FileNotFoundError(f"there is no {self.experiment}.csv in results/ here; {again}")
        for table in tables:
            if not table.is_file():
                raise FileNotFoundError(f"there is no table {table}; {again}")
        for table in tables:
            print(f"figure  {_figure(self.experiment).plot(table)}")


class Report:
    """Write REPORT.md and report.html from the CSVs of a folder, and print their summary."""

    results: Path

    def execute(self) -> None:
        from experiments import report

        pages = report.write(self.results)
        report.print_summary(self.results)
        print("report  " + "\nreport  ".join(map(str, pages)))


class Merge:
    """Put tables that were measured in parallel, each with an --out of its own, into one folder.

    They must have one configuration and may not disagree on a row; all is checked before the first write.
    """

    experiment: str
    folders: tuple[Path, ...]
    into: Path

    def execute(self) -> None:
        module = importlib.import_module(EXPERIMENTS[self.experiment].module)
        if not hasattr(module, "TABLES"):
            raise InputError(f"{self.experiment} has no tables that can be merged: run it in one folder")
        added = merge(module.TABLES, self.folders, self.into, getattr(module, "MERGED_FOLDERS", ()))
        print(f"merged  {self.into}: {', '.join(f'{name} +{count}' for name, count in added.items())}")


def _listing() -> str:
    return "\n".join(f"- {name}: {experiment.summary}" for name, experiment in EXPERIMENTS.items())


def _grammar(arguments: Sequence[str]) -> Any:
    """The type of the command line; ``run`` gets the options of the experiment that is named."""
    which = tyro.conf.arg(help=_listing())
    name = Annotated[Literal[tuple(EXPERIMENTS)], tyro.conf.Positional, which]  # type: ignore[valid-type]
    csvs = tyro.conf.arg(metavar="[CSV ...]", help="All EXPERIMENT.csv in results/ unless given.")
    run_fields: list[Any] = [("experiment", name)]
    if asked_for := [a for a in arguments if a in EXPERIMENTS]:
        config = importlib.import_module(EXPERIMENTS[asked_for[0]].module).Config
        run_fields.append(("config", config))
    run: Any = dataclasses.make_dataclass("Run", run_fields, bases=(Run,))
    paths = Annotated[tuple[Path, ...], tyro.conf.Positional, csvs]
    plot_fields: list[Any] = [("experiment", name), ("csv", paths, ())]
    plot: Any = dataclasses.make_dataclass("Plot", plot_fields, bases=(Plot,))
    sources = tyro.conf.arg(metavar="FOLDER [FOLDER ...]", help="They hold the CSVs, and stay as they are.")
    into = tyro.conf.arg(metavar="FOLDER", help="Where the rows go; it may hold some already.")
    merge_fields: list[Any] = [
        ("experiment", name),
        ("folders", Annotated[tuple[Path, ...], tyro.conf.Positional, sources]),
        ("into", Annotated[Path, into]),
    ]
    merged: Any = dataclasses.make_dataclass("Merge", merge_fields, bases=(Merge,))
    where = tyro.conf.arg(metavar="FOLDER", help="Holds a folder for each model.")
    report: Any = dataclasses.make_dataclass(
        "Report", [("results", Annotated[Path, where], Path("results"))], bases=(Report,)
    )
    command = Union[  # noqa: UP007  (the members are values, not names)
        Annotated[run, tyro.conf.subcommand("run", description=Run.__doc__)],
        Annotated[plot, tyro.conf.subcommand("plot", description=Plot.__doc__)],
        Annotated[merged, tyro.conf.subcommand("merge", description=Merge.__doc__)],
        Annotated[report, tyro.conf.subcommand("report", description=Report.__doc__)],
    ]
    threads = Annotated[
        int, tyro.conf.arg(metavar="N", help="CPU threads of each process, 0 for torch's default.")
    ]
    return dataclasses.make_dataclass("Repro", [("command", command), ("threads", threads, 0)])


def _parse(arguments: Sequence[str]) -> Any:
    """The parsed call, or an exit status if nothing is left to do: help was shown, or the error told."""
    grammar = _grammar(arguments)
    complaint = io.StringIO()
    columns = os.environ.get("COLUMNS")
    try:
        if not {"-h", "--help"} & set(arguments):
            os.environ["COLUMNS"] = "10000"  # tyro draws boxes; unwrapped they can be read back as a line
        with contextlib.redirect_stderr(complaint), warnings.catch_warnings(action="ignore"):
            call: Any = tyro.cli(
                grammar,
                args=arguments,
                prog="repro",
                description=f"The JAGG paper's tables, one command each.\n{_listing()}",
                config=(
                    tyro.conf.OmitArgPrefixes,
                    tyro.conf.OmitSubcommandPrefixes,
                    tyro.conf.CascadeSubcommandArgs,
                ),
            )
        if call.threads >= 0:
            return call
        note(f"repro: --threads is {call.threads}, expected 1 or more; leave it out for torch's default")
        return 2
    except SystemExit as stop:
        if stop.code in (0, None):
            return 0
        words = [a for a in arguments if a in ("run", "plot", "merge", "report")][:1]
        words += [a for a in arguments if a in EXPERIMENTS][:1]
        note(f"repro: {_one_line(complaint.getvalue())}; see `{' '.join(['repro', *words])} --help`")
        return 2
    finally:
        if columns is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = columns


def _one_line(box: str) -> str:
    """tyro's boxed complaint as one line: what is wrong; what was expected."""
    sections: list[list[str]] = [[]]
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines():
        content = line.strip("│ ")
        if content and not content.strip("─-"):
            sections.append([])
        elif content and line.startswith(("│", "  ")):  # two blanks where stdout is not UTF-8
            sections[-1].append(content)
    parts = [" ".join(section) for section in sections]
    for pattern, replacement in _REWORDINGS:
        parts = [re.sub(pattern, replacement, part) for part in parts]
    return "; ".join(stripped for part in parts if (stripped := part.strip(". ")))


_REWORDINGS = (
    (r"^For full helptext.*$", ""),
    (r"^Argument helptext:", "expected"),
    (r"^Error parsing command\.config: ", ""),
    (r"'command\.(\w+)'", r"\1"),
    (r" in repro [^;]*? --help", ""),
    (r" \((?:default: [^)]*|required)\)", ""),
)
