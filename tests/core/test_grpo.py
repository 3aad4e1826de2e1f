"""The clipped surrogate and its KL term, against independent formulas and through a real gradient."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from repro.core.gradient import accumulate_gradient
from repro.core.grpo import ClippedSurrogate, group_advantages
from repro.core.rollout import reindex, sample
from repro.core.schemes.jagg import jagg
from repro.core.schemes.scheme import exact
from repro.core.sde import CPS, ODE, Dance, Flow, shifted_sigmas

SIGMAS = shifted_sigmas(9, 3.0)  # eight trained steps
BATCH, SHAPE = 4, (3, 2)
ADVANTAGES = torch.tensor([1.2, -0.7, 0.0, -0.5])
DANCE = Dance(0.5)


class Policy(torch.nn.Module):
    """A small network; its velocity is called by sampling step."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        size = math.prod(SHAPE)
        self.inner = torch.nn.Parameter(torch.randn(size, size, generator=generator) / size**0.5)
        self.outer = torch.nn.Parameter(torch.randn(size, size, generator=generator) / size**0.5)

    def velocity(self, steps, latents):
        level = torch.tensor([float(SIGMAS[i]) for i in steps]).to(latents).view(-1, 1, 1)
        hidden = torch.tanh(latents.flatten(2) @ self.inner.to(latents.dtype) + level)
        return (hidden @ self.outer.to(latents.dtype)).view_as(latents)


def setting(kernel=DANCE, steps=8, advantages=ADVANTAGES, clip_range=0.1, dtype=torch.float32, **options):
    """A policy, the trajectory it sampled, and the surrogate over `steps`."""
    policy = Policy().to(dtype)
    noise = torch.randn(BATCH, *SHAPE, generator=torch.Generator().manual_seed(1)).to(dtype)
    trajectory = sample(policy.velocity, noise, SIGMAS, kernel, torch.Generator().manual_seed(2))
    surrogate = ClippedSurrogate.from_trajectory(trajectory, steps, advantages, clip_range, **options)
    return SimpleNamespace(
        policy=policy, trajectory=trajectory, surrogate=surrogate, trained=trajectory.trained(steps)
    )


def by_hand(s, velocities, advantages=ADVANTAGES, clip_range=0.1):
    """(losses, ratios) of all trained steps from torch's own normal density; averages spelled out."""
    losses, ratios = [], []
    for j, v in enumerate(velocities):
        kernel, z, after = s.trained.kernels[j], s.trained.latents[j], s.trained.next_latents[j]
        mean, std = kernel.transition(z, v, s.trained.sigmas[j], s.trained.next_sigmas[j])
        density = Normal(mean, std).log_prob(after).flatten(1).mean(1)
        ratio = torch.exp(density - s.trained.log_probs[j])
        step = []
        for a, r in zip(advantages, ratio, strict=True):
            low, high = 1 - clip_range, 1 + clip_range
            kept = r if low <= r <= high else r.new_tensor(low if r < low else high)
            step.append(-torch.minimum(a * r, a * kept))
        losses.append(torch.stack(step).mean() / len(velocities))
        ratios.append(ratio)
    return torch.stack(losses), torch.stack(ratios)


def moved(s, size=0.6):
    """Velocities of a policy that has moved since the rollout, so that some ratios leave the clip range."""
    shift = torch.randn(s.trained.velocities.shape, generator=torch.Generator().manual_seed(3))
    return s.trained.velocities + size * shift.to(s.trained.velocities)


@pytest.mark.parametrize("kernel", [Dance(0.5), Flow(0.7), CPS(0.3)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ratio_is_one_right_after_a_rollout(kernel, dtype):
    """Recomputed with the stacked steps of an update, not step by step as in the rollout."""
    s = setting(kernel, dtype=dtype)
    with torch.no_grad():
        velocities = reindex(s.policy.velocity, 8)(range(8), s.trained.latents)
    found = s.surrogate(range(8), s.trained.velocities)
    assert found.ratio.dtype == torch.float32
    torch.testing.assert_close(found.ratio, torch.ones(8, BATCH), rtol=0, atol=1e-5)
    assert not found.clipped.any()
    if dtype == torch.float32:
        again = s.surrogate(range(8), velocities)
        torch.testing.assert_close(again.ratio, torch.ones(8, BATCH), rtol=0, atol=1e-5)
        torch.testing.assert_close(again.loss, (-ADVANTAGES.mean() / 8).expand(8), rtol=0, atol=1e-5)


@pytest.mark.parametrize("steps", [8, range(2, 6), [1, 4, 5]])
def test_losses_ratios_and_gradients_are_the_formulas(steps):
    s = setting(steps=steps, dtype=torch.float64)
    v = moved(s).requires_grad_()
    losses, ratios = by_hand(s, v)
    found = s.surrogate(range(len(v)), v)
    torch.testing.assert_close(found.loss, losses)
    torch.testing.assert_close(found.ratio, ratios.detach())
    outside = (found.ratio - 1).abs() > 0.1
    assert 0 < outside.sum() < outside.numel()
    (expected,) = torch.autograd.grad(losses.sum(), v)
    (gradient,) = torch.autograd.grad(found.loss.sum(), v)
    torch.testing.assert_close(gradient, expected)


def test_the_clip_gates_exactly_the_samples_it_reports():
    s = setting(dtype=torch.float64)
    v = moved(s).requires_grad_()
    found = s.surrogate(range(8), v)
    assert not (found.ratio.requires_grad or found.clipped.requires_grad)
    (gradient,) = torch.autograd.grad(found.loss.sum(), v)
    reaches = gradient.flatten(2).abs().amax(-1) > 0
    above, below = found.ratio > 1.1, found.ratio < 0.9
    gated = ((ADVANTAGES > 0) & above) | ((ADVANTAGES < 0) & below)
    assert torch.equal(found.clipped, gated)
    assert torch.equal(reaches, ~gated & (ADVANTAGES != 0))
    # all four kinds occur: gated and not, on either side; pessimism lets bad moves through
    assert gated.any() and (above & ~gated & reaches).any() and (below & ~gated & reaches).any()


def test_gradient_passes_gradcheck_away_from_the_clips_kink():
    s = setting(
        dtype=torch.float64, kl_weight=0.3, reference_velocities=torch.zeros(8, BATCH, *SHAPE).double()
    )
    v = moved(s)[2:4].requires_grad_()
    assert torch.autograd.gradcheck(lambda v: s.surrogate([2, 3], v).loss, v)


def test_steps_index_the_trained_list():
    s = setting(steps=[1, 3, 6])
    v = moved(s)
    together = s.surrogate([0, 1, 2], v)
    for j in range(3):
        alone = s.surrogate([j], v[j : j + 1])
        assert torch.equal(alone.loss, together.loss[j : j + 1])
        assert torch.equal(alone.ratio, together.ratio[j : j + 1])
    swapped = s.surrogate([2, 0], v[[2, 0]])
    assert torch.equal(swapped.loss, together.loss[[2, 0]])
    with pytest.raises(ValueError):
        s.surrogate([0, 1], v)


def test_scale_defaults_to_the_mean_over_steps():
    v = moved(setting())
    default, chosen = setting().surrogate(range(8), v).loss, setting(scale=0.5).surrogate(range(8), v).loss
    torch.testing.assert_close(chosen, 4 * default)


def test_kl_is_the_closed_form_divided_by_the_dimension():
    """log p averages over the latent dimensions, and so does the KL: the Gaussians' over their dimension."""
    reference = torch.randn(8, BATCH, *SHAPE, generator=torch.Generator().manual_seed(4)).double()
    s = setting(dtype=torch.float64, kl_weight=0.7, reference_velocities=reference)
    plain = setting(dtype=torch.float64)
    v = moved(s)
    extra = s.surrogate(range(8), v).loss - plain.surrogate(range(8), v).loss
    t = s.trained
    for j in range(8):
        p, q = (
            Normal(*Dance(0.5).transition(t.latents[j], x, t.sigmas[j], t.next_sigmas[j]))
            for x in (v[j], reference[j])
        )
        kl = kl_divergence(p, q).flatten(1).sum(1) / math.prod(SHAPE)
        assert extra[j].item() == pytest.approx(0.7 * kl.mean().item() / 8, rel=1e-9)
    at_reference = s.surrogate(range(8), reference).loss - plain.surrogate(range(8), reference).loss
    assert (at_reference == 0).all()


def test_kl_equals_the_expected_log_ratio_of_the_averaged_densities():
    """E_p[log p - log q] with the log-probability's own averaging: the two conventions agree."""
    mean_p, mean_q, std = torch.tensor([0.3, -0.2]).double(), torch.tensor([0.1, 0.4]).double(), 0.5
    # Gauss-Hermite is exact for the quadratic log-densities
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    expected = sum(
        w
        / math.sqrt(2 * math.pi)
        * (Normal(mean_p, std).log_prob(x) - Normal(mean_q, std).log_prob(x)).mean()
        for w, x in ((w, mean_p + std * n) for n, w in zip(nodes, weights, strict=True))
    )
    assert expected.item() == pytest.approx((((mean_p - mean_q) / std) ** 2).mean().item() / 2)


@pytest.mark.parametrize("scheme", [exact(SIGMAS[:8]), jagg(SIGMAS[:8], 4)], ids=["exact", "jagg"])
@pytest.mark.parametrize("cached", [True, False])
def test_equal_rewards_give_exactly_zero_gradient(scheme, cached):
    advantages = group_advantages(torch.full((2, 2), 0.1)).flatten()
    s = setting(advantages=advantages)
    rollout = {"rollout": s.trajectory.cache(8), "policy_version": 0} if cached else {}
    report = accumulate_gradient(
        scheme, reindex(s.policy.velocity, 8), s.surrogate, s.trained.latents, **rollout
    )
    assert all((p.grad == 0).all() for p in s.policy.parameters())
    assert report.loss == 0
    assert report.clip_fraction == 0
    assert report.ratio_max_deviation < 1e-5


@pytest.mark.parametrize("steps", [8, [0, 1, 2, 3, 5, 6]])
def test_the_exact_scheme_gives_the_plain_gradient_of_the_clipped_loss(steps):
    """Off-policy, so that ratios differ from one and the clip acts on s_j as it does in the exact loss."""
    s = setting(steps=steps, dtype=torch.float64)
    with torch.no_grad():
        s.policy.outer += 0.3 * torch.randn(s.policy.outer.shape, generator=torch.Generator().manual_seed(6))
    n = len(s.trained.latents)
    velocity = reindex(s.policy.velocity, steps)
    losses, _ = by_hand(s, velocity(range(n), s.trained.latents))
    expected = torch.autograd.grad(losses.sum(), list(s.policy.parameters()))
    report = accumulate_gradient(exact(s.trained.sigmas), velocity, s.surrogate, s.trained.latents)
    assert 0 < report.clip_fraction < 1
    assert report.loss == pytest.approx(losses.sum().item())
    for p, gradient in zip(s.policy.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient)


@pytest.mark.parametrize("kernel", [Dance(0.0), Flow(0.0), CPS(0.0), ODE()], ids=repr)
def test_training_without_noise_is_refused_by_name(kernel):
    with pytest.raises(ValueError, match="eta > 0"):
        setting(kernel)


def test_training_the_last_step_is_refused():
    with pytest.raises(ValueError, match=r"trained steps \[8\] have no log-probability.*last step"):
        setting(steps=9)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"advantages": torch.ones(3)}, r"advantages has shape \(3,\), expected \(4,\)"),
        ({"advantages": torch.tensor([1.0, math.nan, 0, 0])}, "advantages are nan"),
        ({"clip_range": 0.0}, "clip_range"),
        ({"kl_weight": -1.0}, "kl_weight"),
        ({"kl_weight": 0.1}, "without reference_velocities"),
        ({"kl_weight": 0.1, "reference_velocities": torch.zeros(7, BATCH, *SHAPE)}, "reference_velocities"),
    ],
)
def test_impossible_surrogates_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        setting(**options)


def test_a_kernel_for_every_step_or_one_for_all():
    s = setting()
    t = s.trained
    arguments = (t.latents, t.next_latents, t.sigmas, t.next_sigmas)
    one = ClippedSurrogate(*arguments, Dance(0.5), t.log_probs, ADVANTAGES, 0.1)
    assert torch.equal(one(range(8), moved(s)).loss, s.surrogate(range(8), moved(s)).loss)
    with pytest.raises(ValueError, match="2 kernels for 8 trained steps"):
        ClippedSurrogate(*arguments, [Dance(0.5)] * 2, t.log_probs, ADVANTAGES, 0.1)
