"""Theorem 1 and its limits: where the interpolation is exact, and by exactly how much it errs elsewhere.

The reported theorem says: v_θ linear in (z, t) makes JAGG exact. Its proof also needs (ours) the latents on
the segment from z_0 to z_{W-1} at the parameters α_j, and v_θ jointly affine in (z, t) for every θ nearby.
Off the segment, for v_θ affine in z, the error is G - Ĝ = Σ_j (D_zJ[r_j])ᵀ s_j with r_j = z_j - [(1 - α_j)
z_0 + α_j z_{W-1}].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from core_problems import flat_gradient, relative, shifted_times
from torch import Tensor

from repro.core.gradient import RolloutVelocities, Surrogate, accumulate_gradient
from repro.core.schemes.jagg import endpoints_only, jagg

W, B, D = 5, 4, 3
TIMES = shifted_times(W)
ALPHA = (TIMES[0] - TIMES) / (TIMES[0] - TIMES[-1])
TOLERANCE = 1e-10


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TARGET = draw(W, B, D, seed=0)


def surrogate(steps: Sequence[int], v: Tensor) -> Surrogate:
    """Any nonlinear loss of v: s_j is an arbitrary function of v_j."""
    return Surrogate(torch.sin(v * TARGET[list(steps)] + 1).sum(dim=(1, 2)) + (v**4).mean(dim=(1, 2)))


class Field:
    """v(z, t; θ) from a function of the parameters, as the velocity of the core's interface."""

    def __init__(self, function: Callable[..., Tensor], **parameters: Tensor) -> None:
        self.function = function
        self.parameters = {name: value.clone().requires_grad_() for name, value in parameters.items()}

    def __call__(self, steps: Sequence[int], latents: Tensor) -> Tensor:
        return self.function(latents, TIMES[list(steps)][:, None, None], **self.parameters)

    def exact(self, latents: Tensor) -> Tensor:
        steps = range(W)
        return flat_gradient(
            surrogate(steps, self(steps, latents)).loss.sum(), list(self.parameters.values())
        )

    def estimate(self, latents: Tensor, scheme=None, **options) -> Tensor:
        for p in self.parameters.values():
            p.grad = torch.zeros_like(p)
        accumulate_gradient(scheme or jagg(TIMES, W), self, surrogate, latents, **options)
        return torch.cat([p.grad.flatten() for p in self.parameters.values()])  # type: ignore[union-attr]

    def upstream(self, latents: Tensor) -> Tensor:
        v = self(range(W), latents).detach().requires_grad_()
        return torch.autograd.grad(surrogate(range(W), v).loss.sum(), v)[0]


PARAMETERS = {"a": draw(D, D, seed=1), "b": draw(D, seed=2), "c": draw(D, seed=3)}


def affine(z: Tensor, t: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return z @ a.T + b * t + c


def affine_nonlinear_in_theta(z: Tensor, t: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Affine in (z, t) for every θ, though nonlinear in θ."""
    return z @ (a @ a.tanh()).T + b.exp() * t + c * b


def with_cross_term(z: Tensor, t: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Linear in z and linear in t, but not jointly affine."""
    return affine(z, t, a, b, c) + t * (z @ d.T)


def affine_at_theta_only(z: Tensor, t: Tensor, a: Tensor, b: Tensor, c: Tensor, e: Tensor) -> Tensor:
    """Affine in (z, t) where e = 0, and there alone."""
    return affine(z, t, a, b, c) + e * z**2


def on_segment(first: Tensor, last: Tensor) -> Tensor:
    """(W, B, D): latents placed at α_j, the premise of the theorem."""
    return first + ALPHA[:, None, None] * (last - first)


ENDS = draw(B, D, seed=4), draw(B, D, seed=5)
SEGMENT = on_segment(*ENDS)
OFF = SEGMENT + 0.3 * draw(W, B, D, seed=6)


@pytest.mark.parametrize("function", [affine, affine_nonlinear_in_theta])
@pytest.mark.parametrize("anchor_chunk", [1, 2])
def test_exact_on_the_segment(function, anchor_chunk):
    field = Field(function, **PARAMETERS)
    assert relative(field.estimate(SEGMENT, anchor_chunk=anchor_chunk), field.exact(SEGMENT)) < TOLERANCE


def test_other_weights_are_not_exact_even_there():
    field = Field(affine, **PARAMETERS)
    exact = field.exact(SEGMENT)
    assert relative(field.estimate(SEGMENT, jagg(TIMES, W, "index")), exact) > 1e-3
    for reading in ("own", "sum", "half", "nearest"):
        assert relative(field.estimate(SEGMENT, endpoints_only(TIMES, W, reading)), exact) > 1e-2


def residuals(latents: Tensor) -> Tensor:
    return latents - on_segment(latents[0], latents[-1])


@pytest.mark.parametrize("function", [affine, affine_nonlinear_in_theta])
def test_error_off_the_segment_is_the_directional_derivative_of_the_jacobian(function):
    """Σ_j (D_zJ[r_j])ᵀ s_j = ∇_θ Σ_j ⟨s_j, D_z v[r_j]⟩: a directional derivative in z, a gradient in θ."""
    field = Field(function, **PARAMETERS)
    error = field.exact(OFF) - field.estimate(OFF)
    r, s = residuals(OFF), field.upstream(OFF)
    assert bool((r[0] == 0).all()) and r[1:-1].abs().min() > 0

    def velocity(z: Tensor) -> Tensor:
        return field(range(W), z)

    _, directional = torch.func.jvp(velocity, (OFF,), (r,))
    expected = flat_gradient((s * directional).sum(), list(field.parameters.values()))
    assert relative(error, expected) < TOLERANCE
    assert float(error.norm() / field.exact(OFF).norm()) > 1e-2


def test_error_off_the_segment_in_closed_form():
    """For v = Az + bt + c: Σ_j s_j r_jᵀ in A, and nothing in b and c."""
    field = Field(affine, **PARAMETERS)
    error = field.exact(OFF) - field.estimate(OFF)
    in_a = torch.einsum("jbd,jbe->de", field.upstream(OFF), residuals(OFF))
    assert relative(error[: D * D], in_a.flatten()) < TOLERANCE
    assert float(error[D * D :].abs().max()) < TOLERANCE


def test_the_flow_of_a_linear_field_leaves_the_segment():
    """Even without noise: Euler steps along v itself curve, and the interpolation is no longer exact."""
    field = Field(affine, **PARAMETERS)
    z, path = ENDS[0], []
    for j in range(W):
        path.append(z)
        v = field([j], z[None])[0].detach()
        z = z + v * (TIMES[j + 1] - TIMES[j]) if j + 1 < W else z
    latents = torch.stack(path)
    assert residuals(latents).norm() / latents.norm() > 1e-2
    assert relative(field.estimate(latents), field.exact(latents)) > 1e-4


def test_a_cross_term_breaks_it_on_the_segment():
    """tz is quadratic along the segment; interpolation errs by α(1 - α)(t_0 - t_{W-1})(z_{W-1} - z_0)."""
    field = Field(with_cross_term, **PARAMETERS, d=draw(D, D, seed=7))
    exact = field.exact(SEGMENT)
    error = exact - field.estimate(SEGMENT)
    assert float(error.norm() / exact.norm()) > 1e-3
    bow = (ALPHA * (1 - ALPHA) * (TIMES[0] - TIMES[-1]))[:, None, None] * (ENDS[1] - ENDS[0])
    in_d = torch.einsum("jbd,jbe->de", field.upstream(SEGMENT), bow)
    assert relative(error[-D * D :], in_d.flatten()) < TOLERANCE
    assert float(error[: -D * D].abs().max()) < TOLERANCE


def test_affine_at_the_current_weights_alone_is_not_enough():
    """v is affine at θ, its Jacobian with respect to θ is not."""
    field = Field(affine_at_theta_only, **PARAMETERS, e=torch.zeros(D).double())
    assert torch.equal(field([1], SEGMENT[[1]]), Field(affine, **PARAMETERS)([1], SEGMENT[[1]]))
    assert relative(field.estimate(SEGMENT), field.exact(SEGMENT)) > 1e-3


@pytest.mark.parametrize("anchor_chunk", [1, 2])
def test_correcting_a_stale_rollout_is_exact_on_the_segment(anchor_chunk):
    """Old and new velocity are affine along it, so their difference is what its ends say."""
    before = Field(affine, **PARAMETERS)(range(W), SEGMENT).detach()
    field = Field(affine, **{name: p + 0.1 * draw(*p.shape, seed=8) for name, p in PARAMETERS.items()})
    options = {"rollout": RolloutVelocities(before, 0), "policy_version": 1, "anchor_chunk": anchor_chunk}
    assert relative(field.estimate(SEGMENT, stale="correct", **options), field.exact(SEGMENT)) < TOLERANCE
    # Trusting the old velocities instead would not be.
    assert relative(field.estimate(SEGMENT, **(options | {"policy_version": 0})), field.exact(SEGMENT)) > 1e-3
