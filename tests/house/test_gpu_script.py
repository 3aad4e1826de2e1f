"""benchmarks/gpu.sh calls commands that exist: tried with a python that writes down what it is asked."""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest

from experiments import cli

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"


def calls(folder: Path, *arguments: str, status: int = 0) -> tuple[subprocess.CompletedProcess, list[str]]:
    """What the script asks of python, a line a call; every call ends with `status`."""
    log, python = folder / "calls.txt", folder / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(log))}\nexit {status}\n')
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), "OUT": str(folder / "out")}
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    return done, log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize(("arguments", "device"), [((), "cuda"), (("--dry-run",), "cpu")])
def test_every_command_of_the_script_is_one(tmp_path: Path, arguments: tuple[str, ...], device: str) -> None:
    done, lines = calls(tmp_path, *arguments)
    assert done.returncode == 0 and "all steps done" in done.stdout
    runs = [shlex.split(line)[2:] for line in lines if line.startswith("-m repro ")]
    assert len(runs) == 4
    for run in runs:
        work = cli.understood(run)
        assert isinstance(work, partial) and work.args[1].device == device, run
    assert lines[0] == f"- {device}" and any(line.startswith("-m pytest") for line in lines)


def test_steps_that_fail_are_told_and_bad_arguments_refused(tmp_path: Path) -> None:
    done, lines = calls(tmp_path, status=1)
    assert done.returncode == 2 and len(lines) == 1, "without its environment nothing is tried"
    done, _ = calls(tmp_path, "--no-such-thing")
    assert done.returncode == 2 and "unknown argument --no-such-thing" in done.stderr
