"""Comparisons of two methods over training seeds, the unit of replication here.

Both methods were run on the same seeds, so what is tested is the mean d of the differences d_1..d_n:

* a 95 % interval by Student's t;
* a sign-flip test, exact over all 2^n assignments: under "no difference" each sign is a coin toss. With 6
  seeds its smallest p is 2/64 = 0.031, with 3 it is 0.25;
* equivalence by two one-sided t tests (TOST) within a margin that was set beforehand: d is "equal" if both
  d <= -margin and d >= margin are rejected at 5 %. A margin that is a share of what a baseline reached is as
  noisy as that, so it is given by seed, and d_i + margin_i and margin_i - d_i are tested against 0: that is
  whether the ratio to the baseline lies within 1 ± share. No difference found is not equality shown.

Six seeds or more decide a direction, three or more equality. Where several contrasts are looked at, their t
tests are corrected by Holm's steps for their number. The sign-flip tests are not: with six seeds none could
survive a correction, so that test is a further condition, which does not rest on normality.

Two seeds decide nothing and have no interval: with one degree of freedom it would be 12.7 standard errors
wide, and still be narrow where two differences happen to be alike. Three decide by t alone, which the table's
number of seeds says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from repro.errors import InputError

LEVEL = 0.05
MARGIN = 0.1
"""Share of the exact baseline's rise within which two arms count as equal, set before any run."""
FEWEST = 3
"""Seeds that an interval and a verdict take, at least."""
SIGN_FLIPS = 6
"""Seeds from which on a difference takes the sign-flip test, too: with fewer it cannot reject at `LEVEL`."""


class Verdict(StrEnum):
    """Of a difference."""

    EQUAL = "equal"
    HIGHER = "higher"
    LOWER = "lower"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Comparison:
    """Of two methods, paired by seed.

    Attributes:
        n: seeds.
        mean: mean difference, first minus second.
        half: half the width of its 95 % interval.
        p_sign_flip: two-sided.
        margin: what counts as equal, the mean over seeds.
        p_equivalence: of the larger of the two one-sided tests.
    """

    n: int
    mean: float
    half: float
    p_sign_flip: float
    margin: float
    p_equivalence: float

    @property
    def p_difference(self) -> float:
        """Of the two-sided t test, from the interval; nan for fewer than `FEWEST` seeds."""
        from scipy import stats

        if math.isnan(self.half):
            return math.nan
        if self.half == 0:
            return float(self.mean == 0)
        t = abs(self.mean) / self.half * stats.t.ppf(1 - LEVEL / 2, self.n - 1)
        return float(2 * stats.t.sf(t, self.n - 1))

    @property
    def decision(self) -> Verdict:
        """The verdict on this contrast alone; see `decide`."""
        return self.decide(self.p_difference, self.p_equivalence)

    def decide(self, p_difference: float, p_equivalence: float) -> Verdict:
        """The verdict by p that may have been corrected for the number of contrasts.

        Equal goes before different: a difference within the margin may well not be zero.
        """
        if self.n >= FEWEST and p_equivalence < LEVEL:
            return Verdict.EQUAL
        if self.n >= SIGN_FLIPS and p_difference < LEVEL and self.p_sign_flip < LEVEL:
            return Verdict.HIGHER if self.mean > 0 else Verdict.LOWER
        return Verdict.UNDECIDED

    @property
    def verdict(self) -> str:
        """As ablation.csv spells it, by the rule of its day: of three seeds, too, and not corrected.

        In words: higher, lower, equal within the margin, or undecided.

        A difference is one by its t interval and, from `SIGN_FLIPS` seeds on, by the sign-flip test, too.
        """
        if self.n < FEWEST:
            return "undecided"
        differs = abs(self.mean) > self.half and (self.n < SIGN_FLIPS or self.p_sign_flip < LEVEL)
        equal = self.p_equivalence < LEVEL
        if equal:
            return "equal within the margin" + (", though not zero" if differs else "")
        if differs:
            return "higher" if self.mean > 0 else "lower"
        return "undecided"


def mean_and_half(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The mean and half the width of its 95 % t interval, nan for fewer than `FEWEST` values."""
    from scipy import stats

    values = np.asarray(values, dtype=float)
    if len(values) < FEWEST:
        return (float(values.mean()) if len(values) else math.nan), math.nan
    half = stats.t.ppf(1 - LEVEL / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(half)


def compare(
    differences: Sequence[float] | np.ndarray, margins: float | Sequence[float] | np.ndarray
) -> Comparison:
    """The comparison of seeds' differences; all that needs two seeds is nan with fewer.

    Args:
        differences: one a seed.
        margins: one for all seeds, or one a seed.

    Raises:
        ValueError: a margin that is not above 0, on average over seeds.
    """
    d = np.asarray(differences, dtype=float)
    margins = np.broadcast_to(np.asarray(margins, dtype=float), d.shape)
    margin = float(margins.mean())
    if not margin > 0:
        raise InputError(f"the equivalence margin is {margin:g}, expected above 0")
    mean, half = mean_and_half(d)
    if len(d) < 2:
        return Comparison(len(d), mean, half, math.nan, margin, math.nan)
    p = max(_p_above_zero(margins + d), _p_above_zero(margins - d))
    return Comparison(len(d), mean, half, _sign_flip(d), margin, p)


def holm(p: Sequence[float]) -> list[float]:
    """p corrected for their number by Holm's steps; nan stay nan and do not count."""
    corrected, largest = [math.nan] * len(p), 0.0
    tested = sorted((i for i, value in enumerate(p) if not math.isnan(value)), key=lambda i: p[i])
    for rank, i in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p[i]))
        corrected[i] = largest
    return corrected


def decide(comparisons: Sequence[Comparison]) -> list[Verdict]:
    """The verdicts of exploratory contrasts, corrected for their number.

    Contrasts of too few seeds for a direction are no tests of one, and do not count among those.
    """
    differences = holm([c.p_difference if c.n >= SIGN_FLIPS else math.nan for c in comparisons])
    equivalences = holm([c.p_equivalence if c.n >= FEWEST else math.nan for c in comparisons])
    return [c.decide(d, e) for c, d, e in zip(comparisons, differences, equivalences, strict=True)]


def p_rise(rises: Sequence[float] | np.ndarray) -> float:
    """p of "no rise", the one-sided t test over seeds; nan for fewer than `FEWEST`."""
    values = np.asarray(rises, dtype=float)
    return _p_above_zero(values) if len(values) >= FEWEST else math.nan


def resolution(rises: Sequence[float] | np.ndarray) -> float:
    """How many times the seeds' standard deviation their mean rise is; nan for fewer than `FEWEST`.

    An effect size: more seeds do not change it, and no test of whether there is a rise (`p_rise`).
    """
    values = np.asarray(rises, dtype=float)
    if len(values) < FEWEST:
        return math.nan
    spread = values.std(ddof=1)
    return float(values.mean() / spread) if spread else math.copysign(math.inf, values.mean())


def _p_above_zero(values: np.ndarray) -> float:
    """Of the one-sided t test; without any spread t is infinite, its p 0 or 1."""
    from scipy import stats

    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(len(values))
    t = mean / error if error > 0 else math.inf if mean > 0 else -math.inf
    return float(stats.t.sf(t, len(values) - 1))


def _sign_flip(d: np.ndarray) -> float:
    from scipy import stats

    result = stats.permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=2 ** min(len(d), 14), rng=0
    )
    return float(result.pvalue)
