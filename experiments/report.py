"""Everything that results/ holds, written once: REPORT.md, the same as report.html, and README's summary.

All of it comes from the CSVs: a summary, the paper's claims with test and verdict, then a section a table.
Neither torch nor matplotlib is loaded; figures are those that `repro run` and `repro plot` drew.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments import paper, summary
from experiments.claims import MODELS, RUNS, Judged, judged
from experiments.common.markdown import table as markdown_table
from experiments.sections import SECTIONS, Section
from repro.console import PLAIN_WIDTH
from repro.results import provenance_path

ROOT = Path(__file__).resolve().parent.parent
RESULTS, README = ROOT / "results", ROOT / "README.md"

ORDER = [place.folder for place in (*MODELS, *RUNS)]
"""Of folders; others follow by name."""
APART = ("quick", *(section.under for section in SECTIONS if section.under))
"""Folders in results/ that are searched only when asked for: quick runs, and sections of their own."""
LARGEST = 40_000
"""Bytes of a figure, at most, that report.html holds inside; larger ones are linked to."""


def write(results: Path) -> tuple[Path, Path]:
    """Write REPORT.md and report.html into a folder of results; returns their paths.

    README's summary is written, too, if these are the committed results.
    """
    found = judged(results)
    text = markdown(results, found)
    report, page = results / "REPORT.md", results / "report.html"
    report.write_text(text)
    page.write_text(html(text, results))
    if results.resolve() == RESULTS and README.exists():
        README.write_text(filled(README.read_text(), found))
    return report, page


def print_summary(results: Path) -> None:
    """Print the summary of a folder of results."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(Markdown(f"{_quick(results)}{summary.markdown(judged(results))}"))


def filled(readme: str, found: Judged) -> str:
    """README with its measured part written anew."""
    return re.sub(
        r"(<!-- measured -->\n).*?(?=<!-- end -->)",
        lambda match: f"{match[1]}{summary.markdown(found)}\n",
        readme,
        flags=re.DOTALL,
    )


# Markdown


def markdown(results: Path, found: Judged) -> str:
    """REPORT.md's text."""
    parts = [
        "# JAGG reproduced: the report",
        "Made by `repro report` from the CSVs beside it and from nothing else. *Reported* is what a "
        f"machine-written summary of the paper says ({paper.TITLE}, arXiv {paper.ARXIV}); *early code* was "
        "read in an early public version of the authors' training code; everything else was measured or "
        f"derived here. {_quick(results)}Intervals are 95 %.",
        " · ".join(
            f"[{title}](#{slug(title)})" for title in ("Summary", "Claims", *(s.title for s in SECTIONS))
        ),
        "## Summary",
        summary.markdown(found),
        "## Claims",
        "What the paper claims or its method needs, how it is tested here, and what came out.",
        claims_table(found),
        *_reasons(found),
    ]
    for section in SECTIONS:
        parts += _section(section, results)
    return "\n\n".join(filter(None, parts)) + "\n"


def claims_table(found: Judged) -> str:
    """Every claim, its test and the verdict wherever it was measured."""
    rows = []
    for claim, of_claim in found.items():
        verdicts = [
            f"{place}: {finding.judgement or 'not reported'} ({finding.text})"
            for place, finding in of_claim.items()
        ]
        nothing = "not measured yet" if claim.table else "no verdict"
        if claim.held_by:
            nothing = f"as derived; held by `{claim.held_by}`"
        rows.append((claim.what, claim.reported, "; ".join(verdicts) or nothing, claim.test))
    return markdown_table(("claim", "reported", "verdict", "test"), rows)


def _reasons(found: Judged) -> Iterator[str]:
    """Why, where a finding says so; places that share a reason together."""
    for claim, of_claim in found.items():
        for why in dict.fromkeys(finding.why for finding in of_claim.values() if finding.why):
            places = "; ".join(str(place) for place, finding in of_claim.items() if finding.why == why)
            yield f"*{claim.what}* ({places}): {why}"


def _section(section: Section, results: Path) -> Iterator[str]:
    yield f"## {section.title}"
    yield section.text
    yield "\n".join(("```", *section.commands, "```"))
    csvs = tables(section, results)
    report = importlib.import_module(section.report)
    if section.together and csvs:
        yield report.markdown(csvs)
        yield "; ".join(_source(csv, results) for csv in csvs)
    for csv in () if section.together else csvs:
        yield f"### {csv.parent.relative_to(results / section.under)}"
        yield _source(csv, results)
        yield report.markdown(csv)
        yield from _figures(csv, results)
    if not csvs:
        yield "No results here yet: the command above writes them."
    if section.limits:
        yield "**Limits.**"
        yield "\n".join(f"- {limit}" for limit in section.limits)


def tables(section: Section, results: Path) -> list[Path]:
    """The CSVs of a section, in the order that they are shown in."""
    under = results / section.under
    apart = () if section.under else APART
    found = []
    for csv in under.glob(f"**/{section.csv}.csv"):
        folders = csv.relative_to(under).parts[:-1]
        if folders and folders[0] not in apart and not any(name.startswith(".") for name in folders):
            found.append(csv)

    def place(csv: Path) -> tuple[int, str]:
        folder = str(csv.parent.relative_to(under))
        return ORDER.index(folder) if folder in ORDER else len(ORDER), folder

    return sorted(found, key=place)


def _source(csv: Path, results: Path) -> str:
    """Where a table's numbers come from: date, machine and commit, if its provenance tells."""
    beside = provenance_path(csv)
    link = f"[{csv.name}]({csv.relative_to(results).as_posix()})"
    if not beside.exists():
        return link
    told = json.loads(beside.read_text())
    words = (
        str(told.get("date", ""))[:10],
        told.get("device") or "",
        f"commit {str(told.get('commit'))[:7]}",
    )
    provenance = f"[provenance]({beside.relative_to(results).as_posix()})"
    return ", ".join(filter(None, (link, *words, provenance)))


def _figures(csv: Path, results: Path) -> Iterator[str]:
    """The figures beside a table: CSV-stem.png, then what its name begins."""
    for png in sorted(csv.parent.glob(f"{csv.stem}*.png"), key=lambda png: (png.stem != csv.stem, png.stem)):
        path = png.relative_to(results).as_posix()
        yield f"![{' '.join(png.stem.split('-'))} of {csv.parent.name}]({path})"


def _quick(results: Path) -> str:
    """A warning, where any of the tables is of a quick run."""
    told = (json.loads(path.read_text()) for path in results.glob("*/*.provenance.json"))
    if not any(_config(provenance).get("quick") for provenance in told):
        return ""
    return "These are quick runs: they show that every table can be made, and their numbers say little. "


def _config(provenance: dict) -> dict:
    config = provenance.get("config")
    return config if isinstance(config, dict) else {}


# HTML


def html(text: str, folder: Path) -> str:
    """A page of a Markdown text that needs no other file: figures in `folder` are embedded."""
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")

    def image(tokens: Sequence[Token], index: int, options: object, env: object) -> str:
        path, words = str(tokens[index].attrs["src"]), tokens[index].content
        file = folder / path
        if file.stat().st_size > LARGEST:
            return f'<a href="{path}">{words}, {file.stat().st_size / 1000:,.0f} kB</a>'
        data = base64.b64encode(file.read_bytes()).decode()
        return f'<img alt="{words}" src="data:image/png;base64,{data}">'

    parser.add_render_rule("image", lambda _, *arguments: image(*arguments))
    parser.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = parser.parse(text)
    for opening, inline in zip(tokens, tokens[1:], strict=False):
        if opening.type == "heading_open":
            opening.attrSet("id", slug(inline.content))
    title = next(inline.content for inline in tokens if inline.type == "inline")
    return PAGE.format(title=title, style=STYLE, body=parser.renderer.render(tokens, parser.options, {}))


def slug(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
body { overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 3rem; border-bottom: 1px solid #8886; }
img { display: block; max-width: 100%; height: auto; margin: 1rem auto; background: white; }
pre { overflow-x: auto; background: #8882; padding: .75rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; overflow-wrap: normal; }
th, td { border: 1px solid #8886; padding: .3rem .5rem; text-align: left; vertical-align: top; }
td { min-width: 4.5rem; }
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}</body>
</html>
"""
