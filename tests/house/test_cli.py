"""The command line: one clear line for bad input, resumable interruption, nothing imported unasked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from experiments import cli

FAKE = '''
"""A tiny experiment."""
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
import sys, time

from repro.results import Table, read


@dataclass
class Config:
    """How well a fake is faked."""

    model: str = "tiny-flux"
    """Bundled name, folder or hub id."""
    mode: Literal["plain", "bug", "interrupt", "slow", "library"] = "plain"
    groups: int = 2
    quick: bool = False
    """Smaller."""
    out: Path = Path("results")
    """Where to."""
    fresh: bool = False

    def __post_init__(self):
        if self.groups < 1:
            raise ValueError(f"groups is {self.groups},\\nexpected 1 or more; pass --groups 5")


def run(config, ranks):
    if config.mode == "bug":
        raise KeyError("a bug")
    if config.mode == "library":
        int("not a number of ours")
    if config.mode == "interrupt":
        raise KeyboardInterrupt
    provenance = {"config": {"groups": config.groups}, "seed": 0}
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 0
    csv = config.out / config.model / "fake.csv"
    columns = {"group": int, "threads": int}
    with Table(csv, columns, ["group"], provenance=provenance, fresh=config.fresh) as table:
        for group in range(config.groups):
            if not table.has(group=group):
                table.append({"group": group, "threads": threads})
                if config.mode == "slow":
                    print("row", flush=True)
                    time.sleep(0.1)
    return csv


def plot(csv):
    figure = csv.with_suffix(".png")
    figure.write_text(f"{len(read(csv))} rows")
    return figure
'''

EXPERIMENTS = {
    "fake": cli.Experiment("fake_experiment", "A tiny experiment."),
    "other": cli.Experiment("no_such_module", "Never imported unless asked for."),
}


@pytest.fixture(params=["utf-8", "ascii"])
def boxes(request, monkeypatch):
    """How tyro draws, by the encoding of stdout."""
    import tyro._fmtlib

    drawing = "_should_use_utf8_drawing_chars"
    monkeypatch.setattr(tyro._fmtlib, drawing, lambda: request.param == "utf-8", raising=False)


@pytest.fixture
def repro(tmp_path, monkeypatch, capsys):
    """``repro(*arguments)`` in an empty folder with the fake experiments -> (status, stdout, stderr)."""
    (tmp_path / "fake_experiment.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fake_experiment", raising=False)
    monkeypatch.setattr(cli, "EXPERIMENTS", EXPERIMENTS)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def call(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(list(arguments))
        return status, *capsys.readouterr()

    yield call
    torch.set_num_threads(threads)


def test_run_measures_and_draws(repro, tmp_path):
    status, out, err = repro("run", "fake", "--groups", "3", "--quick")
    assert (status, err) == (0, "")
    assert out.splitlines() == ["table   results/tiny-flux/fake.csv", "figure  results/tiny-flux/fake.png"]
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
        (["rum"], ["rum", "run, plot", "`repro --help`"]),
        (["run"], ["Missing", "{fake,other}", "`repro run --help`"]),
        (["run", "fakes"], ["'fakes'", "'fake', 'other'"]),
        (["run", "fakes", "--groups", "2"], ["'fakes'", "'fake', 'other'"]),
        (["run", "fake", "--group", "2"], ["--group", "--groups INT", "`repro run fake --help`"]),
        (["run", "fake", "--groups", "two"], ["--groups", "'two'", "expected --groups INT"]),
        (["run", "fake", "--groups"], ["--groups", "Missing value"]),
        (["run", "fake", "--groups", "0"], ["groups is 0, expected 1 or more; pass --groups 5"]),
        (["run", "fake", "--mode", "odd"], ["'odd'", "--mode", "'plain', 'bug'"]),
        (["run", "fake", "--quick", "3"], ["3", "Unrecognized"]),
        (["run", "fake", "--threads", "-2"], ["--threads is -2", "torch's default"]),
        (["run", "fake", "--threads", "x"], ["--threads", "'x'"]),
        (["plot", "fake"], ["no fake.csv in results/", "`repro run fake`"]),
        (["plot", "fake", "nothing.csv"], ["nothing.csv", "`repro run fake`"]),
        (["plot", "nofake"], ["'nofake'", "'fake', 'other'"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(repro, boxes, arguments, told):
    status, out, err = repro(*arguments)
    assert status == 2 and out == ""
    assert err.startswith("repro: ") and err.count("\n") == 1, err
    assert not set("╭╰│─|+\x1b") & set(err)
    for words in told:
        assert words in err


def test_an_error_of_ours_is_one_line_and_status_2(repro):
    assert repro("run", "fake")[0] == 0
    status, _, err = repro("run", "fake", "--groups", "9")
    assert status == 2 and err.count("\n") == 1
    assert "groups=2, not the 9 asked for now" in err and "--out" in err and "--fresh" in err
    assert repro("run", "fake", "--groups", "9", "--fresh")[0] == 0


def test_a_path_that_cannot_be_used_is_one_line_and_status_2(repro, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = repro("run", "fake", "--out", "file")
    assert status == 2 and err.count("\n") == 1 and "file/tiny-flux" in err


@pytest.mark.parametrize(("mode", "error"), [("bug", KeyError), ("library", ValueError)])
def test_a_bug_keeps_its_traceback(repro, mode, error):
    with pytest.raises(error):
        repro("run", "fake", "--mode", mode)


def test_interruption_says_how_to_go_on(repro):
    status, _, err = repro("run", "fake", "--mode", "interrupt")
    assert (status, err) == (
        130,
        "repro: interrupted; finished rows are kept, rerun the same command (without --fresh) to resume\n",
    )


def test_ctrl_c_then_the_same_command_finishes(repro, tmp_path):
    program = (
        f"import sys; sys.path[:0] = [{str(cli.ROOT)!r}, {str(tmp_path)!r}]\n"
        "from repro import cli\n"
        "cli.EXPERIMENTS = {'fake': cli.Experiment('fake_experiment', '')}\n"
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
    assert (
        err
        == "repro: interrupted; finished rows are kept, rerun the same command (without --fresh) to resume\n"
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
    for words in ("run", "plot", "--threads", "fake: A tiny experiment.", "other: Never imported"):
        assert words in out


def test_help_of_an_experiment_shows_its_options_and_fits_the_terminal(repro, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = repro("run", "fake", "--help")
    assert status == 0
    for words in ("How well a fake is faked.", "--model", "Bundled name", "--quick", "--threads"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 100
    assert os.environ["COLUMNS"] == "80"


def test_the_real_command_starts_at_once_and_without_models():
    program = (
        "import sys, time; start = time.process_time()\n"
        "from experiments.cli import main\n"
        "status = main(['--help']); seconds = time.process_time() - start\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'open_clip', 'pandas'} & set(sys.modules)\n"
        "print(status, sorted(heavy), seconds < 2)"
    )
    run = [subprocess.run([sys.executable, "-c", program], cwd=cli.ROOT, capture_output=True, text=True)]
    if run[0].stdout.endswith("False\n"):  # the first time may be spent on compiling
        run.append(
            subprocess.run([sys.executable, "-c", program], cwd=cli.ROOT, capture_output=True, text=True)
        )
    assert run[-1].stdout.splitlines()[-1] == "0 [] True", run[-1]
    for name in cli.EXPERIMENTS:
        assert f"{name}: " in run[-1].stdout


def test_python_m_repro_is_the_same_command():
    run = subprocess.run([sys.executable, "-m", "repro", "rum"], cwd=cli.ROOT, capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == "" and run.stderr.startswith("repro: ")


def test_nobody_reading_on_is_no_error():
    shell = f"{sys.executable} -m repro --help | head -1; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", shell], cwd=cli.ROOT, capture_output=True, text=True)
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


def test_every_experiment_names_a_module_of_the_package():
    for experiment in cli.EXPERIMENTS.values():
        package, module = experiment.module.split(".")
        assert package == "experiments" and experiment.summary.endswith(".")
        assert (Path(cli.ROOT) / package / f"{module}.py").is_file()
