"""README and report state what results/ holds, and what they tell to run and to read exists."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from speedup_tables import made_up

from experiments import cli, report
from experiments.claims import CLAIMS, MODELS, judged
from experiments.common.findings import Finding, Judgement
from experiments.report import README, RESULTS, ROOT
from experiments.sections import SECTIONS
from repro.errors import InputError

PAGES = ("README.md", "CONTRIBUTING.md", "results/README.md", "results/REPORT.md")
STALE = "differs from the CSVs in results/: run `repro report`"
FINDING = {CLAIMS[0]: {MODELS[0]: Finding("15.9 %", Judgement.AGREES)}}


def test_readme_is_one_page() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_report_and_summary_are_the_results() -> None:
    found = judged(RESULTS)
    assert report.filled(README.read_text(), found) == README.read_text(), f"README.md {STALE}"
    text = (RESULTS / "REPORT.md").read_text()
    assert report.markdown(RESULTS, found) == text, f"REPORT.md {STALE}"
    assert report.html(text, RESULTS) == (RESULTS / "report.html").read_text(), f"report.html {STALE}"


def test_readme_shows_nothing_that_the_report_does_not() -> None:
    measured = re.search(r"<!-- measured -->\n(.*?)<!-- end -->", README.read_text(), re.DOTALL)
    assert measured and measured[1].strip() in (RESULTS / "REPORT.md").read_text()


def test_filling_replaces_what_was_there() -> None:
    text = report.filled("a\n<!-- measured -->\nstale 0.123\n<!-- end -->\nb\n", FINDING)
    assert "stale" not in text and "15.9 %: agrees" in text and text.endswith("\n<!-- end -->\nb\n")
    assert report.filled(text, FINDING) == text


def test_own_trainer_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"## Your own trainer.*?```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code
    exec(compile(code[1], "README.md", "exec"), {})
    assert "backwards=10" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_understood(page: str) -> None:
    text = (ROOT / page).read_text().replace("\\\n", " ")
    commands = re.findall(r"^(?:torchrun .* -m )?repro (.+?)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(commands) > 3 or page == "CONTRIBUTING.md"
    for command in commands:
        words = shlex.split(command)
        cli._take_threads(words)
        try:
            cli.understood(words)
        except (InputError, FileNotFoundError) as error:  # a path of the reader's own is not here
            assert re.search("no model|no prompts|no hpsv2|no pickscore|no scorer", str(error)), command


@pytest.mark.parametrize("page", PAGES)
def test_links_exist(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        file, _, anchor = target.partition("#")
        assert file.startswith("http") or (path.parent / file).exists(), target
        if anchor and not file:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in map(report.slug, headings), target


def test_contributing_names_files_that_exist() -> None:
    names = re.findall(r"`([\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(names) > 10
    for name in names:
        if "/" in name and not re.search("NAME|TABLE", name):
            assert (ROOT / name).exists(), name


def test_a_folder_of_its_own_gets_a_report_and_leaves_readme_alone(tmp_path: Path) -> None:
    (tmp_path / "tiny-flux").mkdir()
    made_up(tmp_path / "tiny-flux")
    shutil.copy(RESULTS / "allgather" / "allgather.png", tmp_path / "tiny-flux" / "speedup.png")
    before = README.read_bytes()
    text, page = (path.read_text() for path in report.write(tmp_path))
    assert README.read_bytes() == before
    assert text.count("No results here yet") == len(SECTIONS) - 1
    assert "](tiny-flux/speedup.png)" in text and "](tiny-flux/speedup.csv)" in text
    assert page.count("<img ") == 1 and 'src="data:image/png;base64,' in page
    assert 'name="viewport"' in page and '<h2 id="speedup">' in page and '<div class="wide"><table>' in page


def test_large_figures_are_linked_to(tmp_path: Path) -> None:
    (tmp_path / "big.png").write_bytes(bytes(report.LARGEST + 1))
    page = report.html("# t\n\n![pictures](big.png)", tmp_path)
    assert "<img" not in page and '<a href="big.png">pictures, 40 kB</a>' in page


def test_tables_come_in_order_and_quick_runs_apart(tmp_path: Path) -> None:
    folders = ("quick/tiny-flux", ".states/x", "b", "gpu/lora/flux-dev", "tiny-qwen-image", "tiny-flux")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "cosine.csv").touch()
    found = [csv.parent.relative_to(tmp_path).as_posix() for csv in report.tables(SECTIONS[0], tmp_path)]
    assert found == ["tiny-flux", "tiny-qwen-image", "b", "gpu/lora/flux-dev"]
    assert len(report.tables(SECTIONS[0], tmp_path / "quick")) == 1


def test_the_summary_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report.print_summary(tmp_path)
    printed = capsys.readouterr().out
    assert "17.3 … 18.2 %" in printed and "tiny-qwen-image" in printed


def test_the_report_loads_neither_torch_nor_matplotlib() -> None:
    """Nor does reading a table."""
    program = (
        "import importlib, sys, experiments.report\nfrom experiments.sections import SECTIONS\n"
        "for section in SECTIONS: importlib.import_module(section.report)\n"
        "print({'torch', 'matplotlib'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == "set()", run.stderr
