"""Writes the measured numbers into README.md: ``python -m experiments.readme``.

What stands between ``<!-- measured: NAME -->`` and ``<!-- end -->`` comes from the CSVs in results/ and from
nowhere else; a test holds README against them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from experiments import summary
from experiments.ablation import report as ablation_markdown
from experiments.allgather import measure as allgather
from experiments.benchmarks import report as benchmarks
from experiments.convergence import report as convergence_markdown
from experiments.convergence import sweep as sweep_markdown
from experiments.convergence.arms import ALGORITHMS
from experiments.cosine import report as cosine_report
from experiments.speedup import report as speedup_report
from repro import zoo

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "results"
TRAINED = [f"{model}-{algorithm}" for model in zoo.MODELS for algorithm in ALGORITHMS]
"""Folders of training runs, in the order that they are shown in."""
FIGURES = {
    "Figure": "",
    "learning rates": "-rates",
    "ratios and clipping": "-offpolicy",
    "pictures": "-samples",
}
"""What a table of training runs is drawn in."""


def _summary() -> str:
    return summary.markdown(ROOT / RESULTS)


def _cosine() -> str:
    return _tables(zoo.MODELS, "cosine.csv", cosine_report.markdown, "repro run cosine")


def _convergence() -> str:
    return _tables(
        TRAINED, "convergence.csv", convergence_markdown.markdown, "repro run convergence", 1, FIGURES
    )


def _sweep() -> str:
    command = (
        "repro run convergence --arms exact --regimes comfortable paper-eta --lr-factors 0.333 1 3 "
        "--seeds 1 --out results/sweep"
    )
    # Each start has a folder of its own, the preset's lies above them.
    places = (
        csv.parent.relative_to(ROOT / RESULTS) for csv in (ROOT / RESULTS).glob("sweep/**/convergence.csv")
    )
    folders = map(str, sorted(places, key=lambda place: (place.name, len(place.parts), place)))
    return _tables(folders, "convergence.csv", sweep_markdown.markdown, command, figures={"Figure": "-rates"})


def _ablation() -> str:
    return _tables(TRAINED, "ablation.csv", ablation_markdown.markdown, "repro run ablation", 1)


def _speedup() -> str:
    # benchmarks/gpu.sh leaves a folder for each of its steps in results/gpu.
    on_gpus = sorted((ROOT / RESULTS).glob("gpu/*/*/speedup.csv"))
    folders = [*zoo.MODELS, *(str(csv.parent.relative_to(ROOT / RESULTS)) for csv in on_gpus)]
    return _tables(folders, "speedup.csv", speedup_report.markdown, "repro run speedup")


def _allgather() -> str:
    return _tables(["allgather"], "allgather.csv", allgather.markdown, "repro run allgather")


def _benchmarks() -> str:
    command = "python -m pytest benchmarks --results results/benchmarks"
    return _tables(["benchmarks"], "benchmarks.csv", benchmarks.markdown, command)


def _tables(
    folders: Iterable[str],
    name: str,
    markdown: Callable[[Path], str],
    command: str,
    unfolded: int | None = None,
    figures: Mapping[str, str] = MappingProxyType({"Figure": ""}),
) -> str:
    """What every folder's table says, with its figure; or the command that makes one, where there is none.

    Args:
        folders: in results/.
        name: of the table.
        markdown: writes what one says.
        command: makes the first folder's.
        unfolded: how many are shown at once, the others on a click; all by default.
        figures: what links to them say, and what follows the table's name in theirs.
    """
    there = [folder for folder in folders if (ROOT / RESULTS / folder / name).exists()]
    if not there:
        return f"No results yet: `.venv/bin/{command}` writes them."
    parts = []
    for place, folder in enumerate(there):
        csv = Path(RESULTS, folder, name)
        text = markdown(ROOT / csv)
        pngs = {words: csv.with_name(f"{csv.stem}{ending}.png") for words, ending in figures.items()}
        links = [f"[{words}]({png})" for words, png in pngs.items() if (ROOT / png).exists()]
        text += f" {', '.join(links)}." if links else ""
        if unfolded is not None and place >= unfolded:
            text = f"<details><summary>{folder}</summary>\n\n{text}\n\n</details>"
        parts.append(text)
    return "\n\n".join(parts)


PARTS: dict[str, Callable[[], str]] = {
    "summary": _summary,
    "cosine": _cosine,
    "convergence": _convergence,
    "sweep": _sweep,
    "ablation": _ablation,
    "speedup": _speedup,
    "allgather": _allgather,
    "benchmarks": _benchmarks,
}


def filled(text: str) -> str:
    """``text`` with every measured part written anew."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n<!-- end -->"

    return re.sub(r"(<!-- measured: (\w+) -->)\n.*?<!-- end -->", part, text, flags=re.DOTALL)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
