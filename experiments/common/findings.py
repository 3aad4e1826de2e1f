"""What a table found of a reported claim: the measured words and the judgement, apart from each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Judgement(StrEnum):
    """Of a reported claim, in the light of what was measured here."""

    AGREES = "agrees"
    NOT_CONTRADICTED = "does not contradict"
    DISAGREES = "disagrees"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Finding:
    """Of one claim on one model.

    Attributes:
        text: what was measured, short enough for a table's cell.
        judgement: None where nothing was reported.
        why: a sentence; a disagreement always has one.
    """

    text: str
    judgement: Judgement | None = None
    why: str = ""

    def __str__(self) -> str:
        return self.text if self.judgement is None else f"{self.text}: {self.judgement}"
