"""Kernels against closed forms: a Gaussian target, whose velocity field and marginals are known.

For x0 ~ N(MEAN, SPREAD^2) and noise e ~ N(0, 1), z = (1 - s) x0 + s e is N((1 - s) MEAN, V) with
V = (1 - s)^2 SPREAD^2 + s^2, and the best velocity is linear in z:

    v(z, s) = E[e - x0 | z] = -MEAN + (s - (1 - s) SPREAD^2) / V * (z - (1 - s) MEAN).

With it every kernel's step is z' = A z + B + std n, so mean and variance are carried through a trajectory
exactly, without sampling: m' = A m + B, V' = A^2 V + std^2.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from torch import Tensor

from repro.core.sde import CPS, ODE, Dance, Flow, Transition, log_prob, shifted_sigmas

MEAN, SPREAD = 0.8, 0.5


def marginal(sigma: Tensor | float, spread: float = SPREAD) -> tuple[Tensor, Tensor]:
    s = torch.as_tensor(sigma, dtype=torch.float64)
    return (1 - s) * MEAN, ((1 - s) * spread) ** 2 + s**2


def field(z: Tensor, s: Tensor, spread: float = SPREAD) -> Tensor:
    mean, variance = marginal(s, spread)
    return -MEAN + (s - (1 - s) * spread**2) / variance * (z - mean)


def moments(kernel, sigmas: Tensor, spread: float = SPREAD) -> tuple[list[float], list[float]]:
    """Mean and variance after each step, from the true marginal at sigmas[0]."""
    here, after = sigmas[:-1], sigmas[1:]

    def step(z: Tensor) -> Transition:
        return kernel.transition(z, field(z, here, spread), here, after)

    zero, one = step(torch.zeros_like(here)), step(torch.ones_like(here))
    slopes, offsets, stds = (x.tolist() for x in (one.mean - zero.mean, zero.mean, zero.std))
    mean, variance = (x.item() for x in marginal(sigmas[0], spread))
    means, variances = [mean], [variance]
    for a, b, std in zip(slopes, offsets, stds, strict=True):
        means.append(a * means[-1] + b)
        variances.append(a**2 * variances[-1] + std**2)
    return means, variances


def errors(kernel, top: float, bottom: float, steps: list[int]) -> np.ndarray:
    """Error of the variance at `bottom`, coming from `top` in evenly spaced steps; means are exact."""
    found = []
    for n in steps:
        means, variances = moments(kernel, torch.linspace(top, bottom, n + 1, dtype=torch.float64))
        mean, variance = (x.item() for x in marginal(bottom))
        assert means[-1] == pytest.approx(mean, abs=1e-12)
        found.append(variances[-1] - variance)
    return np.array(found)


# The last step to sigma 0 is taken without noise (rollout.sample does that), so these end just above.
@pytest.mark.parametrize(
    ("kernel", "top"),
    [
        (ODE(), 1.0),
        (Dance(0.3), 1.0),
        (Dance(0.7), 1.0),
        (Dance(1.5), 1.0),
        (Flow(0.7), 0.9),
        (Flow(2.0), 1.0),
    ],
    ids=repr,
)
def test_marginals_are_kept_to_first_order(kernel, top):
    found = np.abs(errors(kernel, top, 0.02, [50, 100, 200, 400, 800, 1600, 3200]))
    assert found[0] < 0.06
    assert found[-1] < 1e-3
    assert found[-2] / found[-1] == pytest.approx(2, abs=0.1)


def test_every_intermediate_marginal_is_kept():
    for kernel, top in ((ODE(), 1.0), (Dance(0.7), 1.0), (Flow(0.7), 0.95)):
        sigmas = torch.linspace(top, 0.02, 3201, dtype=torch.float64)
        truth = marginal(sigmas)[1].numpy()
        assert np.abs(np.array(moments(kernel, sigmas)[1]) - truth).max() < 2e-3


@pytest.mark.parametrize("eta", [0.5, 0.7])
def test_flow_from_pure_noise_converges_with_exponent_eta_squared(eta):
    """Near sigma = 1 step k adds noise eta^2 / k: an error of order one, forgotten only as steps^(-eta^2)."""
    first_step = errors(Flow(eta), 1.0, 1 - 1e-6, [1])
    assert first_step[0] == pytest.approx(eta**4 / 4, rel=1e-4)
    found = errors(Flow(eta), 1.0, 0.5, [6400, 25600])
    assert math.log(found[0] / found[1]) / math.log(4) == pytest.approx(eta**2, abs=0.03)
    below_one = errors(Flow(eta), 0.95, 0.5, [6400, 25600])
    assert math.log(below_one[0] / below_one[1]) / math.log(4) == pytest.approx(1, abs=0.05)


class WithoutScore(Dance):
    """A wrong sampler: noise added, nothing pulled back."""

    def transition(self, latents, velocity, sigma, sigma_next):
        return Transition(
            ODE().transition(latents, velocity, sigma, sigma_next).mean,
            super().transition(latents, velocity, sigma, sigma_next).std,
        )


class HalfScore(Dance):
    """Another: half of the correction."""

    def transition(self, latents, velocity, sigma, sigma_next):
        right = super().transition(latents, velocity, sigma, sigma_next)
        wrong = ODE().transition(latents, velocity, sigma, sigma_next)
        return Transition((right.mean + wrong.mean) / 2, right.std)


@pytest.mark.parametrize("kernel", [WithoutScore(0.7), HalfScore(0.7)], ids=["none", "half"])
def test_a_wrong_drift_does_not_keep_the_marginals(kernel):
    found = errors(kernel, 1.0, 0.02, [400, 800, 1600])
    assert (found > 0.05).all()
    assert found[2] == pytest.approx(found[1], rel=0.1)  # it does not go away with more steps


def test_the_score_of_the_exact_field_is_the_gaussians():
    """The drift's correction, mean - ODE's mean = h g^2 / 2 * score, with the marginal's own score."""
    z, s, t = torch.tensor(1.7, dtype=torch.float64), torch.tensor(0.6).double(), torch.tensor(0.55).double()
    mean, variance = marginal(s)
    score = -(z - mean) / variance
    for kernel, rate2 in ((Dance(0.4), 0.16), (Flow(0.4), 0.16 * 0.6 / 0.4)):
        v = field(z, s)
        moved = kernel.transition(z, v, s, t).mean - ODE().transition(z, v, s, t).mean
        torch.testing.assert_close(moved, (s - t) * rate2 / 2 * score)
        torch.testing.assert_close(kernel.transition(z, v, s, t).std, (rate2 * (s - t)).sqrt())


unit = st.floats(0.01, 1.0)


@given(sigma=unit, share=st.floats(0.0, 0.99), eta=st.floats(0.0, 1.0))
def test_cps_keeps_the_schedules_coefficients(sigma, share, eta):
    """With z = (1 - s) x0 + s e and v = e - x0: data weight 1 - s', squared noise weights adding to s'^2."""
    sigma_next = sigma * share
    data, noise = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 1.0]).double()  # weights of x0 and e
    mean, std = CPS(eta).transition((1 - sigma) * data + sigma * noise, noise - data, sigma, sigma_next)
    assert mean[0].item() == pytest.approx(1 - sigma_next, abs=1e-14)
    assert mean[1].item() ** 2 + std.item() ** 2 == pytest.approx(sigma_next**2, abs=1e-14)
    assert std.item() == pytest.approx(sigma_next * math.sin(eta * math.pi / 2), abs=1e-14)


def test_cps_keeps_the_marginals_of_a_point_but_not_of_a_spread_target():
    sigmas = shifted_sigmas(20, 3.0)
    assert np.allclose(moments(CPS(0.5), sigmas[:-1], spread=0.0)[1], (sigmas[:-1] ** 2).numpy(), atol=1e-14)
    fine = torch.linspace(1, 0.02, 6401, dtype=torch.float64)
    assert abs(moments(CPS(0.3), fine)[1][-1] - marginal(0.02)[1].item()) > 1e-2


@pytest.mark.parametrize("kernel", [Dance(0.0), Flow(0.0), CPS(0.0), ODE()], ids=repr)
def test_without_noise_every_kernel_is_the_ode(kernel):
    z, v = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    sigmas = shifted_sigmas(5, 3.0)
    for s, t in zip(sigmas[:-1], sigmas[1:], strict=True):
        mean, std = kernel.transition(z, v, s, t)
        torch.testing.assert_close(mean, z + (t - s).float() * v, rtol=1e-6, atol=1e-6)
        assert std == 0


def test_flow_is_finite_at_pure_noise():
    z = torch.ones(3)
    mean, std = Flow(0.7).transition(z, z, 1.0, 0.96)
    assert torch.isfinite(mean).all()
    # sigma / (1 - next sigma) * (1 - next sigma): the first step's std is eta itself
    assert std.item() == pytest.approx(0.7)
    chosen = Flow(0.7, sigma_max=0.98)
    assert chosen.transition(z, z, 1.0, 0.96).std.item() == pytest.approx(0.7 * math.sqrt(0.04 / 0.02))
    below = Flow(0.7).transition(z, z, 0.96, 0.9)
    torch.testing.assert_close(
        chosen.transition(z, z, 0.96, 0.9).mean, below.mean
    )  # only sigma = 1 is special


@given(
    sigma=unit, share=st.floats(0.0, 0.99), kernel=st.sampled_from([Dance(0.3), Flow(0.7), CPS(0.4), ODE()])
)
def test_transitions_are_linear_with_the_stated_coefficients(sigma, share, kernel):
    z, v = torch.tensor([0.3, -1.2]).double(), torch.tensor([2.0, 0.7]).double()
    a, b, std = kernel.coefficients(sigma, sigma * share)
    mean, std_of_transition = kernel.transition(z, v, sigma, sigma * share)
    torch.testing.assert_close(mean, a * z + b * v)
    torch.testing.assert_close(std_of_transition, std)


@pytest.mark.parametrize("kernel", [Dance(0.3), Flow(0.7), CPS(0.4), ODE()], ids=repr)
def test_stacked_steps_equal_single_ones(kernel):
    generator = torch.Generator().manual_seed(1)
    z, v = torch.randn(2, 4, 3, 5, generator=generator)
    sigmas = shifted_sigmas(4, 3.0)
    stacked = kernel.transition(z, v, sigmas[:-1].view(-1, 1, 1), sigmas[1:].view(-1, 1, 1))
    for j in range(4):
        single = kernel.transition(z[j], v[j], sigmas[j].item(), sigmas[j + 1].item())
        assert torch.equal(single.mean, stacked.mean[j])
        assert torch.equal(single.std, stacked.std[j, 0, 0])


def test_log_prob_is_scipys_averaged_over_the_latent_dimensions():
    generator = torch.Generator().manual_seed(2)
    x, mean = torch.randn(2, 3, 2, 5, 4, generator=generator, dtype=torch.float64)
    std = torch.tensor([0.1, 1.0, 2.5], dtype=torch.float64).view(3, 1, 1, 1)
    expected = norm.logpdf(x, mean, std).mean((2, 3))
    np.testing.assert_allclose(log_prob(x, mean, std).numpy(), expected, rtol=1e-13)
    single = log_prob(x[0], mean[0], std[0], batch_dims=1).float()
    np.testing.assert_allclose(single.numpy(), expected[0], rtol=1e-6)


def test_bfloat16_inputs_give_float32_results_of_the_rounded_numbers():
    generator = torch.Generator().manual_seed(3)
    z, v, after = torch.randn(3, 1, 2, 64, generator=generator).bfloat16()
    transition = Dance(0.3).transition(z, v, 0.9, 0.87)
    found = log_prob(after, *transition)
    assert transition.mean.dtype == transition.std.dtype == found.dtype == torch.float32
    exact = Dance(0.3).transition(z.double(), v.double(), 0.9, 0.87)
    expected = norm.logpdf(after.double(), exact.mean, exact.std).mean(-1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", [Dance(0.0), Flow(0.0), CPS(0.0), ODE(), CPS(0.5)], ids=repr)
def test_log_prob_without_noise_is_refused_by_name(kernel):
    z = torch.ones(1, 2, 3)
    sigma_next = 0.0 if kernel == CPS(0.5) else 0.5  # CPS adds no noise in its last step
    transition = kernel.transition(z, z, 0.6, sigma_next)
    with pytest.raises(ValueError, match="eta > 0"):
        log_prob(z, *transition)


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("n", [1, 7, 21])
def test_schedule_is_diffusers_static_shift(n, shift):
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / n, n))
    sigmas = shifted_sigmas(n, shift)
    assert sigmas.dtype == torch.float64
    assert sigmas[0] == 1 and sigmas[-1] == 0
    torch.testing.assert_close(sigmas.float(), scheduler.sigmas, rtol=0, atol=1e-6)


def test_schedule_covers_dynamic_shifting():
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / 9, 9), mu=0.8)
    torch.testing.assert_close(shifted_sigmas(9, math.exp(0.8)).float(), scheduler.sigmas, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Dance(-0.1), "eta"),
        (lambda: Flow(math.nan), "eta"),
        (lambda: CPS(1.1), "eta"),
        (lambda: Flow(0.7, sigma_max=1.0), "sigma_max"),
        (lambda: shifted_sigmas(0, 3.0), "num_steps"),
        (lambda: shifted_sigmas(4, 0.0), "shift"),
    ],
)
def test_impossible_settings_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()
