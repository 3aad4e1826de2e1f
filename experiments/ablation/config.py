"""Which contrasts to make between which training runs: their settings, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.common.intervals import MARGIN
from experiments.convergence import config as convergence
from experiments.convergence.arms import ArmName, RegimeName


@dataclass(frozen=True)
class Config(convergence.Config):
    """Contrasts between arms; the cells' options are those of convergence."""

    arms: tuple[ArmName, ...] = ()
    """ways to train; exact, jagg, endpoints-only readings and both subsets unless given; four with --quick"""
    regimes: tuple[RegimeName, ...] = ()
    """regimes in which the arms are compared; comfortable and sparse unless given, the first with --quick"""
    margin: float = MARGIN
    """share of the exact baseline's rise within which two arms count as equal"""
