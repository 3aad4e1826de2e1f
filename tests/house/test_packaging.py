"""What a fresh clone relies on: a cheap import, complete packaging, targets that install, honest notices."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import repro
from experiments import paper

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODELS = {"diffusers", "transformers", "open_clip", "peft"}
DISTRIBUTIONS = {
    "open_clip": "open_clip_torch",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "markdown_it": "markdown_it_py",
}
CORE = sorted(path.stem for path in (ROOT / "repro" / "core").glob("[a-z]*.py"))


def python(program: str) -> list[str]:
    """The lines that ``program`` prints in an interpreter of its own."""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_import_repro_is_cheap():
    """In seconds of this process, so that a busy machine does not count."""
    program = (
        "import sys, time; start = time.process_time(); import repro\n"
        "print(time.process_time() - start, *sorted(sys.modules))"
    )
    seconds, *modules = python(program)[0].split()
    assert float(seconds) < 2
    assert not {"torch", *MODELS} & set(modules)


def test_the_whole_public_surface_needs_torch_alone():
    """Everything that is exported, and every core module, without diffusers, transformers or open_clip."""
    program = (
        "import importlib, sys, repro\n"
        f"for module in {CORE}: importlib.import_module('repro.core.' + module)\n"
        "for name in repro.__all__: getattr(repro, name)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    modules = set(python(program)[0].split())
    assert "torch" in modules and not MODELS & modules


def test_public_names_are_the_cores():
    assert sorted(repro.__all__) == sorted({"__version__", *repro.core.PUBLIC})
    assert set(repro.__all__) <= set(dir(repro))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        repro.nonsense  # noqa: B018


def imports(path: Path) -> set[str]:
    """The modules that a file imports, by their full names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return found


def test_requirements_admit_the_gpu_machine_and_cover_what_is_imported():
    requirements = PROJECT["project"]["dependencies"]
    assert "torch>=2.11" in requirements and not any("<" in line or "==" in line for line in requirements)
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    extras = PROJECT["project"]["optional-dependencies"]
    development = extras["dev"]
    for folder, available in (
        ("repro", requirements + extras["logging"]),
        ("experiments", requirements),
        ("tests", requirements + development),
        ("benchmarks", requirements + development),
    ):
        names = {re.split(r"[<>=\[]", line)[0].lower().replace("-", "_") for line in available}
        names |= {
            "repro",
            "experiments",
            *sys.stdlib_module_names,
            *(path.stem for path in (ROOT / folder).rglob("*.py")),
        }
        names |= {"hpsv2"} if folder == "tests" else set()  # make installs it without its requirements
        for path in (ROOT / folder).rglob("*.py"):
            needed = {name.split(".")[0] for name in imports(path)}
            missing = {DISTRIBUTIONS.get(name, name) for name in needed} - names
            assert not missing, (
                f"{path.relative_to(ROOT)} imports {missing}, which pyproject.toml does not require"
            )


def test_the_wheel_takes_both_packages_and_the_command():
    assert PROJECT["project"]["scripts"] == {"repro": "experiments.cli:main"}
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["repro", "experiments"]
    for name in ("LICENSE", "NOTICE", "README.md"):
        assert (ROOT / name).is_file()


def in_checkout(*arguments: str) -> subprocess.CompletedProcess:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_git_keeps_results_and_checkpoints_and_ignores_runs_and_environments():
    for path in ("results/tiny-flux/cosine.csv", "repro/zoo/tiny-flux/vae/model.safetensors", "figure.png"):
        assert in_checkout("check-ignore", "-q", "--no-index", path).returncode == 1, path
    for path in (".venv/bin/python", "runs/x.csv", "repro/__pycache__/a.pyc", ".mypy_cache/x"):
        assert in_checkout("check-ignore", "-q", "--no-index", path).returncode == 0, path


def make(folder: Path, *arguments: str) -> list[str]:
    """The commands that make would run in a copy of the Makefile."""
    for name in ("Makefile", "pyproject.toml"):
        (folder / name).write_text((ROOT / name).read_text())
    command = ["make", "--no-print-directory", "-n", f"PYTHON={sys.executable}", *arguments]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def stamp(folder: Path) -> Path:
    return folder / make(folder, "install")[-1].split()[-1]


def test_make_installs_once_and_again_when_something_changed(tmp_path):
    commands = make(tmp_path, "install")
    assert any("-m venv" in line for line in commands) and any(
        "--no-deps hpsv2==1.2.0" in line for line in commands
    )
    stamp(tmp_path).parent.mkdir()
    stamp(tmp_path).touch()
    assert not any("pip" in line for line in make(tmp_path, "install"))
    for change in ("[tool.x]\n", "# y\n"):
        with open(tmp_path / "pyproject.toml", "a") as file:
            file.write(change)
        command = ["make", "--no-print-directory", "-n", f"PYTHON={sys.executable}", "install"]
        assert "pip" in subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout


@pytest.mark.parametrize("target", ["test", "reproduce", "lint"])
def test_every_target_installs_what_it_needs(tmp_path, target):
    commands = make(tmp_path, target)
    assert any("pip install" in line and "[dev]" in line for line in commands)
    if target == "test":
        assert "pytest" in commands[-1]


def test_reproduce_runs_quick_tables_and_keeps_the_ablations_cells(tmp_path):
    runs = [line.split(" run ")[1] for line in make(tmp_path, "reproduce") if " -m repro run " in line]
    assert all(" --quick" in run for run in runs)
    tables = [run.split()[0] for run in runs]
    assert set(tables) == {"cosine", "convergence", "ablation", "speedup"}
    # The ablation reads what convergence has just trained anew.
    assert tables.index("convergence") < tables.index("ablation")
    assert ["--fresh" in run for run in runs] == [table != "ablation" for table in tables]
    choices = [re.sub(r"^\w+|--fresh", "", run).split() for run in runs]
    assert choices[tables.index("convergence")] == choices[tables.index("ablation")]


def test_make_says_when_python_is_too_old(tmp_path):
    (tmp_path / "old").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "old").chmod(0o755)
    make(tmp_path, "install")
    run = subprocess.run(["make", "PYTHON=./old", "install"], cwd=tmp_path, capture_output=True, text=True)
    assert (
        run.returncode != 0 and "older than Python 3.11" in run.stderr and not (tmp_path / ".venv").exists()
    )


def test_citation_names_the_paper_and_the_software():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    cited = citation["preferred-citation"]
    assert cited["title"] == paper.TITLE
    assert tuple(author["family-names"] for author in cited["authors"]) == paper.AUTHORS
    assert paper.ARXIV in cited["identifiers"][0]["value"]
    assert citation["version"] == repro.__version__ and citation["license"] == PROJECT["project"]["license"]


def test_notices_credit_the_pictures_behind_the_checkpoints():
    notice = (ROOT / "NOTICE").read_text()
    for words in (
        "emoji-datasource-google 16.0.0",
        "emoji-datasource-twitter 16.0.0",
        "Noto Emoji",
        "Open Font License 1.1",
        "Twemoji",
        "Creative Commons Attribution 4.0",
        "checkpoints",
        "CC BY 4.0",
    ):
        assert words in notice, words
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def test_every_quoted_number_carries_its_mark():
    facts = paper.facts()
    assert len(facts) > 20 and {fact.mark for fact in facts} == {"reported", "early code", "ours"}
    assert str(paper.COSINE_EARLY_GROUPS) == "0.74 … 0.85 (reported)"
    assert str(paper.STEP_FLUX_JAGG) == "228 s (reported)"
    for fact in facts:
        assert str(fact).endswith(f"({fact.mark})")


def test_the_reductions_follow_from_the_seconds():
    for exact, jagg, reduction in (
        (paper.STEP_QWEN_IMAGE_EXACT, paper.STEP_QWEN_IMAGE_JAGG, paper.STEP_REDUCTION_QWEN_IMAGE),
        (paper.STEP_FLUX_EXACT, paper.STEP_FLUX_JAGG, paper.STEP_REDUCTION_FLUX),
        (paper.STEP_COST_EXACT, paper.STEP_COST_JAGG, paper.STEP_COST_REDUCTION),
    ):
        assert round(100 * (1 - jagg.low / exact.low), 1) == reduction.low
