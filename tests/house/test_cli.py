"""The command line: one clear line for bad input, resumable interruption, nothing imported unasked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import experiments
from experiments import cli
from repro.provenance import ROOT

CONFIG = '''
"""A tiny table."""
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repro.errors import InputError


@dataclass(frozen=True)
class Config:
    """How well a fake is faked."""

    model: str = "tiny-flux"
    """bundled name, folder or hub id"""
    mode: Literal["plain", "bug", "interrupt", "slow", "library"] = "plain"
    groups: int = 2
    quick: bool = False
    """smaller"""
    out: Path = Path("results")
    """where to"""
    fresh: bool = False


def default(words):
    return Config()


def outline(config):
    if config.groups < 1:
        raise InputError(f"groups is {config.groups},\\nexpected 1 or more; pass --groups 5")
    return f"{config.groups} groups of {config.model}"
'''
MEASURE = """
import sys, time

from repro.results import Table


def run(config, ranks):
    if config.mode == "bug":
        raise KeyError("a bug")
    if config.mode == "library":
        int("not a number of ours")
    if config.mode == "interrupt":
        raise KeyboardInterrupt
    provenance = {"config": {"groups": config.groups}, "seed": 0}
    csv = config.out / config.model / "fake.csv"
    columns = {"group": int, "threads": int}
    table = Table(csv, columns, ["group"], provenance=provenance, fresh=config.fresh)
    for group in range(config.groups):
        if not table.has(group=group):
            table.append({"group": group, "threads": sys.modules["torch"].get_num_threads()}, unit=str(group))
            if config.mode == "slow":
                print("row", flush=True)
                time.sleep(0.1)
    return csv
"""
FIGURE = """
from repro.results import read


def plot(csv):
    figure = csv.with_suffix(".png")
    figure.write_text(f"{len(read(csv))} rows")
    return figure
"""
REPORT = """
def markdown(csv):
    return "what a **fake** says"
"""
TABLES = {"fake": "A tiny table.", "other": "Never imported unless asked for."}


@pytest.fixture
def packages(tmp_path):
    """A folder with the fake table's package, and one that cannot be imported."""
    folder = tmp_path / "packages"
    for name, parts in (
        ("fake", {"__init__": "", "config": CONFIG, "measure": MEASURE, "figure": FIGURE, "report": REPORT}),
        ("other", {"__init__": "raise AssertionError"}),
    ):
        (folder / name).mkdir(parents=True)
        for part, text in parts.items():
            (folder / name / f"{part}.py").write_text(text)
    return folder


@pytest.fixture
def repro(tmp_path, packages, monkeypatch, capsys):
    """``repro(*arguments)`` in an empty folder with the fake tables -> (status, stdout, stderr)."""
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(packages)])
    monkeypatch.setattr(cli, "TABLES", TABLES)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def call(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(list(arguments))
        return status, *capsys.readouterr()

    yield call
    torch.set_num_threads(threads)
    for name in [name for name in sys.modules if name.startswith("experiments.fake")]:
        del sys.modules[name]


def test_run_says_what_it_does_measures_draws_and_reports(repro, tmp_path):
    status, out, err = repro("run", "fake", "--groups", "3", "--quick")
    assert (status, err) == (0, "fake: 3 groups of tiny-flux\n")
    assert out.split("\n")[-3:-1] == [
        "table   results/tiny-flux/fake.csv",
        "figure  results/tiny-flux/fake.png",
    ]
    assert "what a fake says" in out
    assert (tmp_path / "results/tiny-flux/fake.png").read_text() == "3 rows"


def test_plot_draws_from_the_csv_alone(repro, tmp_path):
    for model in ("a", "b"):
        repro("run", "fake", "--model", model)
        (tmp_path / "results" / model / "fake.png").unlink()
    status, out, _ = repro("plot", "fake")
    assert (status, out) == (0, "figure  results/a/fake.png\nfigure  results/b/fake.png\n")
    assert repro("plot", "fake", "results/b/fake.csv")[1] == "figure  results/b/fake.png\n"


@pytest.mark.parametrize(
    "arguments",
    [["--threads", "1", "run", "fake", "--fresh"], ["run", "fake", "--threads", "1", "--fresh"]],
)
def test_threads_are_set_before_the_work(repro, tmp_path, arguments):
    assert repro(*arguments)[0] == 0
    assert (tmp_path / "results/tiny-flux/fake.csv").read_text() == "group,threads\n0,1\n1,1\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["rum"], ["no command rum", "run, plot, merge or report", "`repro --help`"]),
        (["run"], ["repro run what?", "fake, other"]),
        (["run", "fakes", "--groups", "2"], ["no table fakes", "fake, other"]),
        (["plot", "nofake"], ["no table nofake", "fake, other"]),
        (["run", "fake", "--groups", "0"], ["groups is 0, expected 1 or more; pass --groups 5"]),
        (["run", "fake", "--threads", "-2"], ["--threads is -2", "expected 1 or more"]),
        (["run", "fake", "--threads=x"], ["--threads is x"]),
        (["run", "fake", "--threads"], ["--threads is empty"]),
        (["plot", "fake"], ["no fake.csv in results/", "`repro run fake`"]),
        (["plot", "fake", "nothing.csv"], ["nothing.csv", "`repro run fake`"]),
        (["merge", "fake", "a", "--into", "b"], ["fake has no tables that can be merged"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(repro, arguments, told):
    status, out, err = repro(*arguments)
    assert status == 2 and out == ""
    assert err.startswith("repro: ") and err.count("\n") == 1, err
    for words in told:
        assert words in err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--group", "2"], ["--group", "repro run fake --help"]),
        (["--groups", "two"], ["--groups", "two"]),
        (["--groups"], ["--groups"]),
        (["--mode", "odd"], ["odd", "plain", "bug"]),
        (["--quick", "3"], ["3", "Unrecognized"]),
    ],
)
def test_options_that_do_not_exist_end_with_status_2_and_say_so(repro, tmp_path, options, told):
    status, out, err = repro("run", "fake", *options)
    assert status == 2 and out == "" and "Traceback" not in err
    for words in told:
        assert words in err
    assert not (tmp_path / "results").exists()


def test_an_error_of_ours_is_one_line_and_status_2(repro):
    assert repro("run", "fake")[0] == 0
    status, _, err = repro("run", "fake", "--groups", "9")
    assert status == 2 and err.count("\n") == 2
    assert "groups=2, not the 9 asked for now" in err and "--out" in err and "--fresh" in err
    assert repro("run", "fake", "--groups", "9", "--fresh")[0] == 0


def test_a_path_that_cannot_be_used_is_one_line_and_status_2(repro, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = repro("run", "fake", "--out", "file")
    assert status == 2 and err.count("\n") == 2 and "file/tiny-flux" in err


@pytest.mark.parametrize(("mode", "error"), [("bug", KeyError), ("library", ValueError)])
def test_a_bug_keeps_its_traceback(repro, mode, error):
    with pytest.raises(error):
        repro("run", "fake", "--mode", mode)


def test_interruption_says_how_to_go_on(repro):
    status, _, err = repro("run", "fake", "--mode", "interrupt")
    assert status == 130 and err.endswith(
        "repro: interrupted; finished rows are kept, rerun the same command (without --fresh) to resume\n"
    )


def test_ctrl_c_then_the_same_command_finishes(packages, tmp_path):
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import experiments; from experiments import cli\n"
        f"experiments.__path__.append({str(packages)!r}); cli.TABLES = {{'fake': ''}}\n"
        "raise SystemExit(cli.main())"
    )
    command = [sys.executable, "-c", program, "run", "fake", "--mode", "slow", "--groups", "9"]
    child = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs, and so perhaps these tests, with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "row\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.endswith(
        "repro: interrupted; finished rows are kept, rerun the same command (without --fresh) to resume\n"
    )
    kept = (tmp_path / "results/tiny-flux/fake.csv").read_bytes()
    assert 2 <= kept.count(b"\n") < 10
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    whole = (tmp_path / "results/tiny-flux/fake.csv").read_bytes()
    assert whole.startswith(kept) and whole.count(b"\n") == 10


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_commands_and_experiments(repro, arguments):
    status, out, err = repro(*arguments)
    assert (status, err) == (0, "")
    for words in ("run", "plot", "--threads", "fake         A tiny table.", "other        Never imported"):
        assert words in out


def test_help_of_an_experiment_shows_its_options_and_fits_the_terminal(repro, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = repro("run", "fake", "--help")
    assert status == 0
    for words in ("How well a fake is faked.", "--model", "bundled name", "--quick, --no-quick"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 100
    assert os.environ["COLUMNS"] == "80"


LIGHT = "torch diffusers transformers open_clip pandas scipy matplotlib seaborn peft".split()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *(["run", table, "--help"] for table in cli.TABLES),
        *(["run", table, "--modle", "x"] for table in cli.TABLES),
        *(["run", table, "--model", "x"] for table in cli.TABLES if table != "allgather"),
        ["run", "convergence", "--reward", "hpsv2:nowhere.pt"],
        ["run", "convergence", "--prompts-file", "nowhere.txt"],
        ["run", "convergence", "--group-size", "5"],
        ["run", "ablation", "--margin", "0"],
        ["run", "cosine", "--eta", "0"],
        ["run", "speedup", "--rounds", "0"],
    ],
    ids=" ".join,
)
def test_help_and_refusals_load_nothing_heavy(arguments, capsys, monkeypatch):
    """In an interpreter that has none of it: modules are counted, not seconds."""
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from experiments.cli import main\n"
        f"status = main({arguments!r})\n"
        f"print(status, sorted(set({LIGHT!r}) & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    status = 0 if "--help" in arguments else 2
    assert run.stderr.splitlines()[-1] == f"{status} []", run.stderr


def test_python_m_repro_is_the_same_command():
    run = subprocess.run([sys.executable, "-m", "repro", "rum"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == "" and run.stderr.startswith("repro: ")


def test_nobody_reading_on_is_no_error():
    shell = f"{sys.executable} -m repro --help | head -1; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0 and "Traceback" not in run.stderr and run.stdout.startswith("usage: repro")


def test_progress_is_plain_lines_where_there_is_no_terminal(monkeypatch, capsys):
    from repro import console

    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with console.progress("cells", total=4, done=1) as advance:
        for cell in range(3):
            advance(note=f"cell {cell}")
    assert capsys.readouterr().err.splitlines() == [
        "cells: 1/4",
        "cells: 3/4, 0:20 elapsed, 0:10 left  cell 1",
        "cells: 4/4, 0:30 elapsed, 0:00 left  cell 2",
    ]


def test_tables_show_numbers_and_names_as_they_are(capsys):
    from repro import console

    console.print_table(
        "Cosine", ["scheme", "cosine"], [["[exact]", 1.0], ["jagg", 0.99876543]], caption="a note"
    )
    out = capsys.readouterr().out
    for words in ("Cosine", "[exact]", "0.9988", "a note"):
        assert words in out


def test_every_table_is_a_package_of_the_same_parts():
    for table, summary in cli.TABLES.items():
        assert summary.endswith(".")
        for part in ("config", "measure", "analysis", "report", "figure"):
            assert (ROOT / "experiments" / table / f"{part}.py").is_file(), (table, part)
