"""Comparisons paired by seed: intervals, tests and verdicts, against scipy and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from experiments.common.intervals import LEVEL, Verdict, compare, decide, holm, p_rise, resolution


def test_comparison_against_scipy():
    d = np.array([0.02, 0.01, 0.03, 0.015, 0.022, 0.018])
    result = compare(d, 0.05)
    test = stats.ttest_1samp(d, 0)
    low, high = test.confidence_interval(0.95)
    assert (result.mean - result.half, result.mean + result.half) == pytest.approx((low, high))
    assert result.p_sign_flip == pytest.approx(2 / 64)
    one_sided = [stats.ttest_1samp(d, 0.05, alternative="less").pvalue]
    one_sided += [stats.ttest_1samp(d, -0.05, alternative="greater").pvalue]
    assert result.p_equivalence == pytest.approx(max(one_sided))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.02, 0.021, 0.019], "higher"),
        ([-0.02, -0.021, -0.019], "lower"),
        ([0.001, -0.001, 0.0005], "equal within the margin"),
        ([0.002, 0.0021, 0.0019], "equal within the margin, though not zero"),
        ([0.05, -0.05, 0.01], "undecided"),
        ([0.0, 0.0, 0.0], "equal within the margin"),
        ([0.02], "undecided"),
        ([0.02, 0.0201], "undecided"),  # two seeds
    ],
)
def test_verdicts(values, verdict):
    assert compare(values, 0.01).verdict == verdict


def test_equality_is_rarely_claimed_of_a_difference_at_the_margin():
    rng = np.random.default_rng(0)
    claims = [compare(rng.normal(0.01, 0.005, 6), 0.01).p_equivalence < 0.05 for _ in range(300)]
    assert np.mean(claims) == pytest.approx(0.05, abs=0.03)


def test_a_margin_that_is_as_noisy_as_the_baseline_is_tested_by_seed():
    rng = np.random.default_rng(0)
    # The method reaches exactly 0.9 of the baseline, which the margin 0.1 excludes; the seeds' effects are
    # shared, so with the mean's margin held fixed equality would be claimed far more often than in 5 %.
    claims = []
    for _ in range(300):
        baseline = rng.normal(0.1, 0.05, 6)
        method = 0.9 * baseline + rng.normal(0, 0.001, 6)
        claims.append(compare(method - baseline, 0.1 * baseline).p_equivalence < 0.05)
    assert np.mean(claims) == pytest.approx(0.05, abs=0.03)
    d, margins = np.array([-0.02, 0.01, 0.0]), np.array([0.03, 0.05, 0.04])
    one_sided = [stats.ttest_1samp(x, 0, alternative="greater").pvalue for x in (margins + d, margins - d)]
    assert compare(d, margins).p_equivalence == pytest.approx(max(one_sided))


SIX_HIGHER = [0.02, 0.01, 0.03, 0.015, 0.022, 0.018]


@pytest.mark.parametrize(
    ("values", "decision"),
    [
        (SIX_HIGHER, Verdict.HIGHER),
        ([-d for d in SIX_HIGHER], Verdict.LOWER),
        (SIX_HIGHER[:5], Verdict.UNDECIDED),  # no direction of fewer than six seeds
        ([0.02, 0.021, 0.019], Verdict.UNDECIDED),
        ([0.001, -0.001, 0.0005], Verdict.EQUAL),
        ([0.002, 0.0021, 0.0019], Verdict.EQUAL),
        ([0.0001, 0.0001], Verdict.UNDECIDED),
        ([0.02] * 6, Verdict.HIGHER),  # no spread at all: the interval is a point
    ],
)
def test_decisions(values, decision):
    assert compare(values, 0.01).decision is decision


def test_the_p_of_a_difference_is_that_of_the_t_test():
    expected = stats.ttest_1samp(SIX_HIGHER, 0).pvalue
    assert compare(SIX_HIGHER, 0.05).p_difference == pytest.approx(expected)


def test_holm_steps():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.04, np.nan, 0.9])[0] == pytest.approx(0.08)  # what was not tested does not count
    assert np.isnan(holm([0.04, np.nan])[1]) and holm([]) == []


def test_exploratory_contrasts_are_corrected_for_their_number():
    d = np.array([0.002, 0.03, 0.01, 0.025, 0.012, 0.004])
    weak = compare(d, 0.001)
    assert 0.01 < weak.p_difference < LEVEL and weak.decision is Verdict.HIGHER
    assert decide([weak] * 5) == [Verdict.UNDECIDED] * 5
    # Contrasts of three seeds are no tests of a direction, and cost the others nothing.
    assert decide([weak, *[compare(d[:3], 0.001)] * 4])[0] is Verdict.HIGHER


def test_learning_is_a_test_and_resolution_an_effect_size():
    rng = np.random.default_rng(0)
    few, many = (rng.normal(1.0, 1.0, n) for n in (6, 600))
    assert p_rise(many) < 1e-9 < p_rise(few)
    assert resolution(many) == pytest.approx(1.0, abs=0.15)  # more seeds do not mend it
    assert p_rise(few) == pytest.approx(stats.ttest_1samp(few, 0, alternative="greater").pvalue)
    assert np.isnan(p_rise([0.1, 0.1])) and np.isnan(resolution([0.1, 0.1]))
