"""Markdown tables read back."""

from __future__ import annotations


def row(text: str, label: str) -> list[str]:
    """The cells of the first table row that begins with a label."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]
