"""README states what results/ holds."""

from __future__ import annotations

import re

from experiments import readme


def test_measured_parts_are_the_results() -> None:
    text = (readme.ROOT / "README.md").read_text()
    parts = re.findall(r"<!-- measured: (\w+) -->", text)
    assert sorted(parts) == sorted(readme.PARTS), "every part is written once"
    assert readme.filled(text) == text, "README.md differs from results/: run python -m experiments.readme"


def test_filling_replaces_what_was_there() -> None:
    text = "a\n<!-- measured: cosine -->\nstale 0.123\n<!-- end -->\nb\n"
    assert "stale" not in readme.filled(text)
    assert readme.filled(readme.filled(text)) == readme.filled(text)


def test_links_in_readme_exist() -> None:
    text = (readme.ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert (readme.ROOT / target).exists(), target
