"""Trajectories: what is recorded is what happened; without noise the stock scheduler's samples come out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from repro.core.rollout import Trajectory, reindex, sample, standard_normal
from repro.core.sde import CPS, ODE, Dance, Flow, log_prob, shifted_sigmas

SIGMAS = shifted_sigmas(6, 3.0)
SHAPE = (3, 5, 4)  # B samples of 5 x 4 latents


def velocity(steps, latents):
    """Some smooth field that depends on the step."""
    level = torch.tensor([float(SIGMAS[i]) for i in steps]).to(latents).view(-1, *[1] * (latents.ndim - 1))
    return torch.tanh(latents) * (0.5 + level) - 0.3


def noise(dtype=torch.float32):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(7)).to(dtype)


def draw(kernel, seed=0, dtype=torch.float32, **options) -> Trajectory:
    return sample(velocity, noise(dtype), SIGMAS, kernel, torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kernel", [Dance(0.3), Flow(0.7), CPS(0.5)], ids=repr)
def test_every_transition_can_be_recomputed_from_the_record(kernel, dtype):
    """Velocity, next latents = mean + std * noise, and log-probability, step by step."""
    trajectory = draw(kernel, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(trajectory.latents[0], noise(dtype))
    assert trajectory.latents.dtype == trajectory.velocities.dtype == dtype
    assert trajectory.log_probs.dtype == torch.promote_types(dtype, torch.float32)
    for i in range(6):
        z = trajectory.latents[i : i + 1]
        v = velocity([i], z)
        assert torch.equal(v[0], trajectory.velocities[i])
        if i == 5:
            expected = ODE().transition(z, v, SIGMAS[i], SIGMAS[i + 1]).mean
            assert torch.equal(expected.to(dtype)[0], trajectory.latents[-1])
            assert trajectory.log_probs[i].isnan().all()
            continue
        mean, std = kernel.transition(z, v, SIGMAS[i], SIGMAS[i + 1])
        drawn = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
        assert torch.equal((mean + std * drawn).to(dtype)[0], trajectory.latents[i + 1])
        assert torch.equal(log_prob(trajectory.latents[i + 1 : i + 2], mean, std)[0], trajectory.log_probs[i])
        density = norm.logpdf(trajectory.latents[i + 1].double(), mean[0].double(), std.double()).mean((1, 2))
        np.testing.assert_allclose(trajectory.log_probs[i].double(), density, rtol=2e-5)
    assert trajectory.kernels == (kernel,) * 5 + (ODE(),)
    assert torch.equal(trajectory.final, trajectory.latents[-1])


@pytest.mark.parametrize("kernel", [ODE(), Dance(0.0), Flow(0.0), CPS(0.0)], ids=repr)
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_without_noise_the_stock_schedulers_loop_comes_out(kernel, shift):
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / 9, 9))
    latents = noise()
    states = [latents]
    for t, level in zip(scheduler.timesteps, scheduler.sigmas, strict=False):
        latents = scheduler.step(torch.cos(latents) * level + 0.2, t, latents, return_dict=False)[0]
        states.append(latents)

    sigmas = shifted_sigmas(9, shift)
    trajectory = sample(
        lambda steps, z: torch.cos(z) * sigmas[steps[0]].float() + 0.2, noise(), sigmas, kernel
    )
    torch.testing.assert_close(trajectory.latents, torch.stack(states), rtol=1e-5, atol=1e-5)
    assert trajectory.log_probs.isnan().all()


def test_seeds():
    first, again, other = draw(Dance(0.3)), draw(Dance(0.3)), draw(Dance(0.3), seed=1)
    assert torch.equal(first.latents, again.latents) and torch.equal(first.velocities, again.velocities)
    assert torch.equal(first.log_probs[:-1], again.log_probs[:-1])
    assert not torch.equal(first.latents[1], other.latents[1])


def test_noise_drawn_elsewhere_takes_the_generators_place():
    """A part of the samples, whose noise is drawn for all of them, is that part of the whole trajectory."""
    generator = torch.Generator().manual_seed(0)
    part = sample(
        velocity,
        noise()[1:],
        SIGMAS,
        Dance(0.3),
        draw=lambda like: standard_normal(like, generator, samples=3)[:, 1:],
    )
    assert torch.equal(part.latents, draw(Dance(0.3)).latents[:, 1:])


def test_noise_has_the_kernels_spread():
    """Without drift and velocity the increments are the noise: std eta sqrt(h), independent between steps."""
    still = sample(
        lambda steps, z: torch.zeros_like(z),
        torch.zeros(4, 4000),
        SIGMAS,
        CPS(1.0),
        torch.Generator().manual_seed(3),
    )
    spread = still.latents[1:6].flatten(1).std(1)
    # CPS with eta 1 renews everything: next = (1 - s') z + s' n, from z = 0
    expected, variance = [], 0.0
    for s in SIGMAS[1:6].tolist():
        variance = (1 - s) ** 2 * variance + s**2
        expected.append(math.sqrt(variance))
    np.testing.assert_allclose(spread, expected, rtol=0.03)


def test_a_window_of_noise_within_an_ode():
    kernels = [ODE(), Flow(0.7), Flow(0.7), ODE(), ODE(), ODE()]
    trajectory = draw(kernels)
    assert trajectory.kernels == tuple(kernels)
    assert trajectory.log_probs.isnan().all(1).tolist() == [True, False, False, True, True, True]
    trained = trajectory.trained([1, 2])
    assert torch.isfinite(trained.log_probs).all()
    assert trained.kernels == (Flow(0.7), Flow(0.7))


def test_a_schedule_that_stops_short_of_zero_keeps_its_last_density():
    trajectory = sample(velocity, noise(), SIGMAS[:4], Dance(0.3), torch.Generator().manual_seed(0))
    assert torch.isfinite(trajectory.log_probs).all()
    assert torch.equal(trajectory.latents, draw(Dance(0.3)).latents[:4])


def test_sampling_tracks_no_gradient_and_reports_progress():
    weight = torch.ones((), requires_grad=True)
    seen = []
    trajectory = sample(
        lambda steps, z: weight * z,
        noise(),
        SIGMAS,
        Dance(0.3),
        policy_version=4,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert not any(x.requires_grad for x in (trajectory.latents, trajectory.velocities, trajectory.log_probs))
    assert seen == [(i, 6) for i in range(1, 7)]
    assert trajectory.policy_version == 4
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("steps", [3, range(3), range(1, 5), [0, 2, 3], (4,)])
def test_trained_steps_are_the_chosen_rows(steps):
    trajectory = draw(Dance(0.3), policy_version=2)
    chosen = list(range(steps)) if isinstance(steps, int) else list(steps)
    trained = trajectory.trained(steps)
    for j, i in enumerate(chosen):
        assert torch.equal(trained.latents[j], trajectory.latents[i])
        assert torch.equal(trained.next_latents[j], trajectory.latents[i + 1])
        assert torch.equal(trained.velocities[j], trajectory.velocities[i])
        assert torch.equal(trained.log_probs[j], trajectory.log_probs[i])
        assert trained.sigmas[j] == SIGMAS[i] and trained.next_sigmas[j] == SIGMAS[i + 1]
    # a velocity over sampling steps, called by trained steps
    found = reindex(velocity, steps)(range(len(chosen)), trained.latents)
    assert torch.equal(found, trained.velocities)
    cache = trajectory.cache(steps)
    assert cache.policy_version == 2
    assert torch.equal(cache.velocities, trained.velocities)


def test_contiguous_steps_share_memory():
    trajectory = draw(Dance(0.3))
    assert trajectory.trained(range(1, 4)).latents.data_ptr() == trajectory.latents[1].data_ptr()


@pytest.mark.parametrize("index", [slice(1, 3), [2, 0], torch.tensor([1])])
def test_a_subset_of_samples(index):
    trajectory = draw(Dance(0.3))
    part = trajectory.samples(index)
    assert torch.equal(part.latents, trajectory.latents[:, index])
    assert torch.equal(part.trained(5).log_probs, trajectory.log_probs[:5, index])
    assert part.kernels == trajectory.kernels and part.n_steps == 6


@pytest.mark.parametrize("steps", [0, 7, [], [2, 1], [1, 1], [-1, 0], [5, 6]])
def test_impossible_steps_are_refused(steps):
    with pytest.raises(ValueError, match=r"0\.\.5"):
        draw(Dance(0.3)).trained(steps)


@pytest.mark.parametrize(
    "sigmas", [[1.0], [0.5, 0.5], [0.2, 0.8], [1.1, 0.5], [0.5, -0.1], [[1.0, 0.0]], [1.0, math.nan]]
)
def test_impossible_sigmas_are_refused(sigmas):
    with pytest.raises(ValueError, match="strictly decreasing"):
        sample(velocity, noise(), torch.tensor(sigmas), ODE())


def test_wrong_kernels_and_velocities_are_refused():
    with pytest.raises(ValueError, match="2 kernels for 6 steps"):
        draw([ODE(), ODE()])
    with pytest.raises(ValueError, match=r"returned shape \(3, 5, 4\)"):
        sample(lambda steps, z: z[0], noise(), SIGMAS, ODE())
