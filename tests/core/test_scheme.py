"""The matrices: what each scheme reproduces, composes to and refuses. No network."""

from __future__ import annotations

import itertools

import pytest
import torch
from core_problems import shifted_times
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.schemes.groups import equal_span_groups, equal_step_groups
from repro.core.schemes.jagg import endpoints_only, jagg, routed
from repro.core.schemes.scheme import Scheme, compose, exact, step_subset

READINGS = ("own", "sum", "half", "nearest")
fast = settings(max_examples=60, deadline=None)


@st.composite
def grouped_times(draw: st.DrawFn, min_size: int = 1) -> tuple[torch.Tensor, tuple[range, ...]]:
    """Any strictly decreasing times, cut into any groups of at least min_size steps."""
    sizes = draw(st.lists(st.integers(min_size, 6), min_size=1, max_size=5))
    gaps = draw(st.lists(st.floats(0.01, 1.0), min_size=sum(sizes), max_size=sum(sizes)))
    edges = [0, *itertools.accumulate(sizes)]
    groups = tuple(range(a, b) for a, b in itertools.pairwise(edges))
    return 5.0 - torch.tensor(gaps, dtype=torch.float64).cumsum(0), groups


@fast
@given(grouped_times(), st.sampled_from(["time", "index"]), st.floats(-3, 3), st.floats(-3, 3))
def test_jagg_rows_interpolate(case, weighting, slope, offset):
    times, groups = case
    scheme = jagg(times, groups, weighting)
    assert scheme.reproduces_constants
    assert scheme.diagonal_anchor_block
    assert scheme.needed_steps == tuple(range(len(times)))
    assert bool((scheme.weights >= 0).all())
    assert len(scheme.anchors) == sum(min(len(g), 2) for g in groups)
    if weighting == "time":
        f = offset + slope * times
        assert scheme.reproduces_affine
        torch.testing.assert_close(scheme.weights @ f[list(scheme.anchors)], f, rtol=0, atol=1e-12)


@fast
@given(grouped_times(min_size=1))
def test_groups_of_one_and_two_are_exact(case):
    times, groups = case
    for size in (1, 2):
        if len(times) % size == 0:
            torch.testing.assert_close(jagg(times, size).weights, exact(times).weights, rtol=0, atol=0)


@fast
@given(grouped_times(min_size=3))
def test_endpoints_only_readings_fail_constants_or_affine(case):
    times, groups = case
    built = {r: endpoints_only(times, groups, r) for r in READINGS}
    assert {r: s.reproduces_constants for r, s in built.items()} == {
        "own": False,
        "sum": False,
        "half": True,
        "nearest": True,
    }
    assert {r: s.diagonal_anchor_block for r, s in built.items()} == {
        "own": True,
        "sum": False,
        "half": True,
        "nearest": True,
    }
    assert not built["own"].reproduces_affine and not built["sum"].reproduces_affine
    assert not built["nearest"].reproduces_affine
    ends = tuple(sorted({j for g in groups for j in (g[0], g[-1])}))
    assert built["own"].needed_steps == ends
    assert all(s.anchors == ends for s in built.values())


def test_half_is_affine_only_where_each_middle_is_halfway():
    assert endpoints_only([1.0, 0.5, 0.0], 3, "half").reproduces_affine
    assert not endpoints_only([1.0, 0.6, 0.0], 3, "half").reproduces_affine


def test_endpoints_only_matrices():
    times = [1.0, 0.9, 0.3, 0.0]
    expected = {
        "own": [[1, 0], [0, 0], [0, 0], [0, 1]],
        "sum": [[1, 1], [1, 1], [1, 1], [1, 1]],
        "half": [[1, 0], [0.5, 0.5], [0.5, 0.5], [0, 1]],
        "nearest": [[1, 0], [1, 0], [0, 1], [0, 1]],
    }
    for reading in READINGS:
        assert endpoints_only(times, 4, reading).weights.tolist() == expected[reading]
    # Halfway goes to the first end; a floating-point hair beyond it too.
    assert endpoints_only([0.3, 0.2, 0.1], 3, "nearest").weights.tolist() == [[1, 0], [1, 0], [0, 1]]


def test_time_weights_are_the_papers():
    times = [1.0, 0.9, 0.6, 0.5]
    alpha = [0.0, 0.2, 0.8, 1.0]
    expected = torch.tensor([[1 - a, a] for a in alpha], dtype=torch.float64)
    torch.testing.assert_close(jagg(times, 4).weights, expected, rtol=0, atol=1e-15)


def test_index_and_time_weights_differ_under_shift_three_and_coincide_under_shift_one():
    for shift, close in ((1.0, True), (3.0, False)):
        times = shifted_times(20, shift)
        by_time, by_index = jagg(times, 4), jagg(times, 4, "index")
        gap = float((by_time.weights - by_index.weights).abs().max())
        assert (gap < 1e-12) if close else (gap > 0.02)
        assert by_time.reproduces_affine
        assert by_index.reproduces_affine is close


def test_exact_and_subset():
    times = shifted_times(6)
    assert torch.equal(exact(times).weights, torch.eye(6, dtype=torch.float64))
    subset = step_subset(times, [4, 1])
    assert subset.anchors == subset.needed_steps == (1, 4)
    assert not subset.reproduces_constants and subset.diagonal_anchor_block
    assert subset.weights.sum() == 2
    assert step_subset(times, [4, 1], rescale=True).weights.sum() == 6
    # All subsets of a size together, rescaled, weigh every step alike: the estimate is unbiased.
    every = [step_subset(times, c, rescale=True) for c in itertools.combinations(range(6), 2)]
    mean = sum(torch.zeros(6).double().index_add(0, torch.tensor(s.anchors), s.weights.sum(0)) for s in every)
    torch.testing.assert_close(mean / len(every), torch.ones(6).double())


@pytest.mark.parametrize(
    ("n_groups", "jagg_frac", "expected"),
    [
        (5, 0.0, 0),
        (5, 0.6, 3),
        (5, 1.0, 5),
        (5, 0.5, 3),
        (5, 0.3, 2),
        (5, 0.29, 1),
        (10, 0.35, 4),
        (1, 0.49, 0),
    ],
)
def test_routing_rounds_whole_groups_halves_up(n_groups, jagg_frac, expected):
    times = shifted_times(4 * n_groups)
    scheme = routed(times, 4, jagg_frac)
    assert scheme.n_anchors == 2 * expected + 4 * (n_groups - expected)
    head = 4 * expected
    if expected:
        assert torch.equal(scheme.weights[:head, : 2 * expected], jagg(times[:head], 4).weights)
    assert torch.equal(scheme.weights[head:, 2 * expected :], torch.eye(4 * n_groups - head).double())
    assert scheme.reproduces_affine


def test_compose_is_block_diagonal_and_mixes_per_sample_with_shared():
    times = shifted_times(7)
    head, tail = jagg(times[:4], 4), exact(times[4:])
    both = compose(head, tail)
    assert both.name == "jagg-time+exact"
    assert both.anchors == (0, 3, 4, 5, 6)
    assert torch.equal(both.weights, torch.block_diag(head.weights, tail.weights))
    assert torch.equal(both.times, times)

    per_sample = Scheme("own", head.times, head.anchors, torch.rand(4, 2, 3).double())
    mixed = compose(per_sample, tail, name="mixed")
    assert mixed.name == "mixed" and mixed.weights.shape == (7, 5, 3)
    for b in range(3):
        assert torch.equal(
            mixed.weights[:, :, b], torch.block_diag(per_sample.weights[:, :, b], tail.weights)
        )


def test_per_sample_properties_hold_for_every_sample_or_not_at_all():
    base = jagg(shifted_times(4), 4)
    weights = base.weights[:, :, None].repeat(1, 1, 2)
    assert Scheme("s", base.times, base.anchors, weights).reproduces_affine
    weights[1, :, 1] = torch.tensor([0.5, 0.5])
    bent = Scheme("s", base.times, base.anchors, weights)
    assert bent.reproduces_constants and not bent.reproduces_affine
    weights[2, :, 0] = 0.0
    one_sample = Scheme("s", base.times, base.anchors, weights)
    assert one_sample.needed_steps == (0, 1, 2, 3)  # the other sample still needs step 2
    assert not one_sample.reproduces_constants


def test_repr_is_the_matrix():
    text = repr(jagg([1.0, 0.9, 0.6, 0.5], 4))
    assert "'jagg-time': 4 steps, 2 anchors" in text
    assert [line.split() for line in text.splitlines()[2:]] == [
        ["0*", "1.0000", "1.000", "."],
        ["1", "0.9000", "0.800", "0.200"],
        ["2", "0.6000", "0.200", "0.800"],
        ["3*", "0.5000", ".", "1.000"],
    ]
    assert "mean of 2 samples" in repr(Scheme("z", torch.tensor([1.0]), (0,), torch.ones(1, 1, 2)))


def test_equal_step_groups():
    assert equal_step_groups(8, 4) == (range(0, 4), range(4, 8))


def ratio(times: torch.Tensor, groups: tuple[range, ...]) -> float:
    spans = [float(times[g[0]] - times[g[-1]]) for g in groups]
    return max(spans) / min(spans)


@fast
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=9), st.data())
def test_equal_span_groups_are_the_best_of_all_cuts(gaps, data):
    times = 10 - torch.tensor([0.0, *gaps], dtype=torch.float64).cumsum(0)
    n = len(times)
    least = data.draw(st.integers(2, min(3, n)))
    n_groups = data.draw(st.integers(1, n // least))
    groups = equal_span_groups(times, n_groups, least)
    assert [j for g in groups for j in g] == list(range(n)) and len(groups) == n_groups
    every = (
        tuple(range(a, b) for a, b in itertools.pairwise((0, *cuts, n)))
        for cuts in itertools.combinations(range(1, n), n_groups - 1)
    )
    allowed = [g for g in every if min(map(len, g)) >= least]
    assert groups in allowed
    assert ratio(times, groups) <= min(ratio(times, g) for g in allowed) * (1 + 1e-12)


def test_equal_span_groups_take_the_span_out_of_shift_three():
    times = shifted_times(20, sampling_steps=21)
    assert ratio(times, equal_step_groups(20, 4)) > 4
    assert ratio(times, equal_span_groups(times, 4)) < 1.3


TIMES = [1.0, 0.8, 0.5, 0.1]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: jagg(TIMES, 3), "do not divide into groups of W=3"),
        (lambda: jagg(TIMES, 0), "W=0"),
        (lambda: jagg([1.0, 0.8, 0.8, 0.1], 4), "strictly decrease"),
        (lambda: exact([0.1, 0.5]), "strictly decrease"),
        (lambda: exact([1.0, float("nan")]), "finite"),
        (lambda: exact([]), "non-empty"),
        (lambda: jagg(TIMES, [range(0, 2), range(3, 4)]), "cover steps 0..3"),
        (lambda: jagg(TIMES, [range(2, 4), range(0, 2)]), "consecutive"),
        (lambda: jagg(TIMES, 4, "sigma"), "'time' or 'index'"),
        (lambda: endpoints_only(TIMES, 4, "mine"), "own, sum, half, nearest"),
        (lambda: routed(TIMES, 2, 1.01), r"\[0, 1\]"),
        (lambda: routed(TIMES, 2, -0.1), r"\[0, 1\]"),
        (lambda: routed(TIMES, 2, float("nan")), r"\[0, 1\]"),
        (lambda: step_subset(TIMES, []), "one or more distinct steps"),
        (lambda: step_subset(TIMES, [1, 1]), "distinct"),
        (lambda: step_subset(TIMES, [4]), "0..3"),
        (lambda: compose(), "at least one"),
        (lambda: compose(exact(TIMES), exact(TIMES)), "strictly decrease"),
        (
            lambda: compose(
                Scheme("a", [1.0], (0,), torch.ones(1, 1, 2)), Scheme("b", [0.5], (0,), torch.ones(1, 1, 3))
            ),
            "agree on the number of samples",
        ),
        (lambda: Scheme("s", TIMES, (0, 0), torch.zeros(4, 2)), "strictly increasing"),
        (lambda: Scheme("s", TIMES, (0, 4), torch.zeros(4, 2)), "0..3"),
        (lambda: Scheme("s", TIMES, (0, 3), torch.zeros(2, 4)), r"\(n, k\)"),
        (lambda: Scheme("s", TIMES, (0,), torch.full((4, 1), torch.nan)), "finite"),
        (lambda: equal_span_groups([1.0, 0.8, 0.6, 0.5, 0.2, 0.0], 3), "1..2 groups"),
        (lambda: equal_span_groups([1.0, 0.5, 0.5], 1), "strictly decrease"),
        (lambda: equal_span_groups([1.0, 0.5, 0.2], 1, 1), "spans nothing"),
    ],
)
def test_invalid_requests_say_what_to_change(build, says):
    with pytest.raises(ValueError, match=says):
        build()
