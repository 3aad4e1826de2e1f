"""The Gram route against the direct one, for every scheme; sums over prompts; the middles alone."""

from __future__ import annotations

import math

import pytest
import torch
from core_problems import Problem
from torch import Tensor

from repro.core.gradient import accumulate_gradient
from repro.core.schemes.groups import equal_step_groups
from repro.core.schemes.jagg import endpoints_only, jagg, routed
from repro.core.schemes.scheme import Scheme, compose, exact, step_subset
from repro.core.similarity import GroupProducts, Similarity, compare, gradient_products, similarity

W = 4
GROUPS = equal_step_groups(8, W)


def free_ends(times: Tensor) -> Scheme:
    g = torch.Generator().manual_seed(5)
    weights = torch.randn(4, 2, generator=g).double()
    return compose(*(Scheme("free", times[i : i + 4], (0, 3), weights) for i in (0, 4)))


SCHEMES = {
    "exact": exact,
    "jagg-time": lambda t: jagg(t, W),
    "jagg-index": lambda t: jagg(t, W, "index"),
    "routed": lambda t: routed(t, W, 0.5),
    "subset": lambda t: step_subset(t, [1, 3, 4, 6], rescale=True),
    "free": free_ends,
} | {r: lambda t, r=r: endpoints_only(t, W, r) for r in ("own", "sum", "half", "nearest")}


def only_rows(scheme: Scheme, steps: list[int]) -> Scheme:
    """The scheme with all other rows erased."""
    weights = torch.zeros_like(scheme.weights)
    weights[steps] = scheme.weights[steps]
    return Scheme(scheme.name, scheme.times, scheme.anchors, weights)


def accumulated(problem: Problem, scheme: Scheme) -> Tensor:
    """The scheme's gradient by the core's own consumer."""
    accumulate_gradient(scheme, problem.velocity, problem.surrogate, problem.latents)
    return problem.take_grad()


def directly(problem: Problem, scheme: Scheme, group: range) -> Similarity:
    steps, middle = list(group), list(group)[1:-1]
    whole = exact(problem.times)
    return compare(
        accumulated(problem, only_rows(scheme, steps)),
        accumulated(problem, only_rows(whole, steps)),
        accumulated(problem, only_rows(scheme, middle)),
        accumulated(problem, only_rows(whole, middle)),
    )


def measure(problem: Problem, groups=GROUPS, **options) -> list[GroupProducts]:
    return list(
        gradient_products(
            problem.velocity, problem.surrogate, problem.latents, groups, problem.parameters, **options
        )
    )


def assert_same(a: Similarity, b: Similarity, tolerance: float = 1e-10) -> None:
    for field in ("cosine", "middle_cosine", "norm_ratio", "relative_error"):
        assert getattr(a, field) == pytest.approx(getattr(b, field), abs=tolerance, nan_ok=True), field


@pytest.mark.parametrize("name", SCHEMES)
def test_gram_route_equals_direct_route(name):
    problem = Problem()
    scheme = SCHEMES[name](problem.times)
    for products in measure(problem):
        result = similarity(products.gram(), scheme)
        assert_same(result, directly(problem, scheme, products.group))
        assert -1 - 1e-12 <= result.cosine <= 1 + 1e-12


def test_exact_is_identical_and_jagg_is_right_at_the_ends():
    problem = Problem()
    gram = measure(problem)[0].gram()
    assert_same(similarity(gram, exact(problem.times)), Similarity(1.0, 1.0, 1.0, 0.0), 1e-15)
    aggregated = similarity(gram, jagg(problem.times, W))
    assert aggregated.middle_cosine < aggregated.cosine < 1  # the ends flatter the whole
    assert math.isnan(similarity(gram, endpoints_only(problem.times, W, "own")).middle_cosine)


def test_middle_cosine_is_undefined_without_middles():
    problem = Problem()
    for group_size in (1, 2):
        for products in measure(problem, equal_step_groups(8, group_size)):
            assert_same(
                similarity(products.gram(), jagg(problem.times, group_size)),
                Similarity(1.0, math.nan, 1.0, 0.0),
            )


def test_products_of_prompts_add_up_to_the_batch():
    """Also the Gram of the sum is not the sum of Grams: the vectors must be kept until all prompts are in."""
    problem = Problem()
    batch = measure(problem)
    prompts = []
    for samples in (slice(0, 2), slice(2, 5)):
        part = Problem()
        part.samples = samples
        prompts.append(
            list(
                gradient_products(
                    part.velocity, part.surrogate, part.latents[:, samples], GROUPS, part.parameters
                )
            )
        )
    scheme = jagg(problem.times, W)
    for whole, total, other in zip(batch, *prompts, strict=True):
        separate = total.gram().matrix + other.gram().matrix
        total += other
        torch.testing.assert_close(total.vectors, whole.vectors, rtol=1e-10, atol=1e-14)
        assert_same(similarity(total.gram(), scheme), similarity(whole.gram(), scheme))
        assert (separate - total.gram().matrix).abs().max() > 1e-3 * separate.abs().max()


def test_counts_of_backwards_and_vectors():
    problem = Problem()
    products = measure(problem)[0]
    assert problem.backwards == 2 * (3 * W - 2) and len(products.pairs) == 3 * W - 2
    assert problem.forwards == 2 * 2 * W
    assert all(p.grad is None for p in problem.parameters)
    assert problem.tracked == 2 * W


def test_rollout_velocities_save_a_forward_a_step():
    problem = Problem()
    expected = measure(problem)
    problem.reset_counts()
    found = measure(problem, velocities=problem.rollout_velocities())
    assert problem.forwards == 2 * W
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.vectors, b.vectors, rtol=1e-10, atol=1e-14)


def test_groups_are_measured_one_at_a_time():
    problem = Problem()
    products = gradient_products(
        problem.velocity, problem.surrogate, problem.latents, GROUPS, problem.parameters
    )
    assert problem.forwards == 0
    next(products)
    assert problem.forwards == 2 * W


def test_parameters_restrict_the_vectors_and_unused_ones_count_as_zero():
    problem = Problem()
    unused = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    full = measure(problem)[1]
    part = next(
        gradient_products(
            problem.velocity, problem.surrogate, problem.latents, [GROUPS[1]], [problem.parameters[1], unused]
        )
    )
    first = problem.parameters[0].numel()
    expected = full.vectors[:, first : first + problem.parameters[1].numel()]
    torch.testing.assert_close(part.vectors[:, :-3], expected, rtol=1e-10, atol=1e-14)
    assert bool((part.vectors[:, -3:] == 0).all())


def test_gram_accumulates_in_float64():
    vectors = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0)) + 100
    gram = GroupProducts(range(2), ((0, 0), (1, 1)), vectors).gram()
    torch.testing.assert_close(gram.matrix, vectors.double() @ vectors.double().T, rtol=1e-14, atol=0)


def test_compare_of_known_vectors():
    exact_gradient = torch.tensor([3.0, 4.0])
    result = compare(torch.tensor([4.0, -3.0]) * 2, exact_gradient)
    assert_same(result, Similarity(0.0, math.nan, 2.0, math.sqrt(5.0)), 1e-12)
    zero = compare(torch.zeros(2), exact_gradient)
    assert_same(zero, Similarity(math.nan, math.nan, 0.0, 1.0), 0)
    assert all(math.isnan(x) for x in vars(compare(exact_gradient, torch.zeros(2))).values())


def test_invalid_requests():
    problem = Problem()
    first, second = measure(problem)
    gram = first.gram()
    with pytest.raises(ValueError, match="needs step 7 for step 1, not measured"):
        similarity(gram, jagg(problem.times, 8))
    with pytest.raises(ValueError, match="per-sample"):
        similarity(gram, Scheme("z", problem.times, (0, 7), torch.zeros(8, 2, 5)))
    with pytest.raises(ValueError, match="outside the scheme's 4 steps"):
        similarity(second.gram(), jagg(problem.times[:4], W))
    with pytest.raises(ValueError, match="like to like"):
        first += second
