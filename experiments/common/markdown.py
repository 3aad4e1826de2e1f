"""Building blocks of the report's Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; cells are written with ``str``."""
    head, *body = ("| " + " | ".join(map(str, line)) + " |" for line in (headings, *rows))
    return "\n".join([head, "|" + "---|" * len(headings), *body])


def signed(value: float, half: float = math.nan, digits: int = 4) -> str:
    """A difference with half the width of its interval, such as "+0.0123±0.0045"; "-" for nan."""
    if math.isnan(value):
        return "-"
    return f"{value:+.{digits}f}" + ("" if math.isnan(half) else f"±{half:.{digits}f}")


def ranged(value: float, half: float = math.nan, digits: int = 1) -> str:
    """A difference with the ends of its interval, such as "+2.6 (-2.0 … +7.2)"; "-" for nan."""
    ends = "" if math.isnan(half) else f" ({value - half:+.{digits}f} … {value + half:+.{digits}f})"
    return "-" if math.isnan(value) else f"{value:+.{digits}f}{ends}"


def counted(number: int, noun: str) -> str:
    """ "1 seed", "2 seeds"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def listed(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
