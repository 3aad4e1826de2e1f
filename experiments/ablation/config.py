"""Which contrasts to make between which training runs: their settings, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.common.intervals import MARGIN
from experiments.convergence import config as convergence
from repro.errors import InputError


@dataclass(frozen=True)
class Config:
    """Contrasts between the arms of the convergence table; runs that it lacks are trained first."""

    margin: float = MARGIN
    """share of the exact baseline's rise within which two arms count as equal"""
    runs: convergence.Config = field(default_factory=convergence.Config)
    """the training runs: options and plan of convergence"""

    @property
    def device(self) -> str:
        """Of the training runs."""
        return self.runs.device


def default(words: Sequence[str]) -> Config:
    """What the options in these words change."""
    return Config(runs=convergence.default(words))


def check(config: Config) -> None:
    """Refuse a margin that is none.

    Raises:
        InputError: it is not above 0.
    """
    if not config.margin > 0:
        raise InputError(f"margin is {config.margin}, expected a share above 0 of the baseline's rise")


def outline(config: Config) -> str:
    """What a run of this configuration is about to do."""
    check(config)
    return f"contrasts within {100 * config.margin:g} % of {convergence.outline(config.runs)}"
