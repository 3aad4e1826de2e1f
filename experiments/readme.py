"""Writes the measured numbers into README.md: ``python -m experiments.readme``.

What stands between ``<!-- measured: NAME -->`` and ``<!-- end -->`` comes from the CSVs in results/ and from
nowhere else; a test holds README against them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from experiments import cosine_report
from repro import zoo

ROOT = Path(__file__).resolve().parent.parent


def _cosine() -> str:
    tables = [ROOT / "results" / model / "cosine.csv" for model in zoo.MODELS]
    return "\n\n".join(cosine_report.markdown(table) for table in tables if table.exists())


PARTS: dict[str, Callable[[], str]] = {"cosine": _cosine}


def filled(text: str) -> str:
    """``text`` with every measured part written anew."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n<!-- end -->"

    return re.sub(r"(<!-- measured: (\w+) -->)\n.*?<!-- end -->", part, text, flags=re.DOTALL)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
