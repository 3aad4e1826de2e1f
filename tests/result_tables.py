"""A small result table, and an experiment that fills it."""

from __future__ import annotations

from pathlib import Path

from repro.results import Table

COLUMNS = {"group": int, "scheme": str, "cosine": float, "exact": bool}
KEY = ("group", "scheme")
MADE_BY = {
    "config": {"model": "tiny-flux", "batch": 4},
    "seed": 0,
    "checkpoint_sha256": "abc",
    "commit": "c0ffee",
}


def open_table(path: Path, fresh: bool = False, **changes) -> Table:
    return Table(path, COLUMNS, KEY, provenance={**MADE_BY, **changes}, fresh=fresh)


def row(group: int, scheme: str = "jagg", cosine: float = 0.5, exact: bool = False) -> dict:
    return {"group": group, "scheme": scheme, "cosine": cosine, "exact": exact}


def measure(path: Path, groups: int = 4) -> bytes:
    """A little experiment: two rows per group, what is there already is not measured again."""
    table = open_table(path)
    for group in range(groups):
        if not table.has(group=group, scheme="jagg"):
            table.append(
                row(group, "exact", 1, True), row(group, "jagg", 1 / (3 + group)), unit=f"group {group}"
            )
    return path.read_bytes()
