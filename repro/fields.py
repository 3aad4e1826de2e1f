"""One CSV field, equal values giving equal bytes: ``%.9g`` floats, ``true``/``false``, nothing for None."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from repro.errors import InputError

KINDS = (str, int, float, bool)
"""The types a column may have."""


def format_value(value: Any, kind: type) -> str:
    """``value`` as a field of a column of type ``kind``; None is an empty field.

    NumPy scalars and zero-dimensional tensors count as their Python values. Raises ValueError if ``value``
    is not of ``kind`` (an int is welcome in a float column, nothing else is converted), or is text that is
    empty or has a line break.
    """
    if value is None:
        return ""
    if not isinstance(value, KINDS) and hasattr(value, "item"):
        value = value.item()
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and number:
        return f"{float(value) + 0.0:.9g}"  # + 0.0 turns -0.0 into 0.0
    if kind is int and number and isinstance(value, int):
        return str(int(value))
    if kind is bool and isinstance(value, bool):
        return "true" if value else "false"
    if kind is str and isinstance(value, str):
        if not value or "\n" in value or "\r" in value:
            raise InputError(f"{value!r} is not text on one line; pass None for nothing")
        return str(value)
    raise InputError(f"{value!r} is not of type {kind.__name__}")


def is_field(text: str, kind: type) -> bool:
    """Whether ``text`` could have been written by :func:`format_value` for a column of type ``kind``."""
    if kind is bool:
        return text in ("", "true", "false")
    try:
        return text == "" or kind(text) is not None
    except ValueError:
        return False


def format_line(fields: Iterable[str]) -> str:
    """The fields as a line of CSV, without its line break."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(fields)
    return buffer.getvalue()


def parse_line(line: str) -> list[str]:
    """The fields of a line of CSV."""
    return next(csv.reader([line]), [])
