"""README states what results/ holds, and what to run where they hold nothing yet."""

from __future__ import annotations

import re
import shlex

import pytest
from speedup_tables import made_up
from training_tables import fake, rises, swept, write_tables

from experiments import cli, readme


def test_measured_parts_are_the_results() -> None:
    text = (readme.ROOT / "README.md").read_text()
    parts = re.findall(r"<!-- measured: (\w+) -->", text)
    assert sorted(parts) == sorted(readme.PARTS), "every part is written once"
    assert readme.filled(text) == text, "README.md differs from results/: run python -m experiments.readme"


def test_filling_replaces_what_was_there() -> None:
    text = "a\n<!-- measured: cosine -->\nstale 0.123\n<!-- end -->\nb\n"
    assert "stale" not in readme.filled(text)
    assert readme.filled(readme.filled(text)) == readme.filled(text)


def test_the_code_that_lifts_the_core_runs(capsys) -> None:
    text = (readme.ROOT / "README.md").read_text()
    code = re.search(r"## Lift the core.*?```python\n(.*?)```", text, re.DOTALL)
    assert code
    exec(compile(code[1], "README.md", "exec"), {})
    assert "backwards=10" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["README.md", "results/README.md"])
def test_commands_are_understood(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (readme.ROOT / name).read_text().replace("\\\n", " ")
    commands = re.findall(r"^(?:\.venv/bin/)?repro (.+?)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(commands) > 3
    for command in commands:
        assert cli._parse(shlex.split(command)) != 2, capsys.readouterr().err


def test_links_in_readme_exist() -> None:
    text = (readme.ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert (readme.ROOT / target).exists(), target


def test_parts_without_tables_name_their_command(tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    for name, part in readme.PARTS.items():
        if name == "summary":  # has a row for each result
            continue
        command = "python -m pytest benchmarks" if name == "benchmarks" else "repro run"
        assert part().startswith(f"No results yet: `.venv/bin/{command} "), name


def test_parts_show_what_tables_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    table_ = fake({("exact", 1.0): rises(0.4), ("jagg", 1.0): rises(0.4, reverse=True)})
    results = tmp_path / "results"
    first = write_tables(table_, results / "tiny-flux-dance_grpo")
    first.with_suffix(".png").touch()
    write_tables(table_, results / "tiny-flux-flow_grpo_fast", "flow_grpo_fast")
    swept(results / "sweep" / "tiny-flux-dance_grpo", {1.0: [0.1]})
    gpu = results / "gpu" / "flux-dev-lora" / "flux-dev"
    gpu.mkdir(parents=True)
    made_up(gpu)
    text = readme.filled("\n".join(f"<!-- measured: {name} -->\nold\n<!-- end -->" for name in readme.PARTS))
    assert text.index("**m, DanceGRPO, comfortable**") < text.index("<details>")  # the first one is open
    assert "<details><summary>tiny-flux-flow_grpo_fast</summary>\n\n**m, Flow-GRPO-Fast, comf" in text
    assert "[Figure](results/tiny-flux-dance_grpo/convergence.png)." in text
    assert "flow_grpo_fast/convergence.png" not in text  # none was drawn
    assert "0.3 (early code)" in text and "routed-0.6 takes" in text
    assert text.count("No results yet") == 4  # cosine, ablation, allgather, benchmarks
