"""Samples that train steps of their own: the gradient is that of every sample trained alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from repro.core.minibatch import Minibatch
from repro.core.rollout import sample
from repro.core.schemes.jagg import jagg
from repro.core.schemes.scheme import Scheme, exact
from repro.core.sde import Dance, Flow, shifted_sigmas

SIGMAS = shifted_sigmas(9, 3.0)
STEPS = torch.tensor([[0, 1, 0], [2, 4, 1], [3, 5, 2], [7, 6, 3]])  # 4 steps of each of 3 samples
ADVANTAGES = torch.tensor([1.3, -0.4, 0.7], dtype=torch.float64)


class Network(nn.Module):
    """A velocity that depends on latents and noise level, in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4)).double()

    def forward(self, steps, latents):
        sigma = SIGMAS[torch.as_tensor(steps)].reshape(len(steps), -1, 1, 1)
        sigma = sigma.expand(*latents.shape[:-1], 1)
        return self.layers(torch.cat([latents, sigma], dim=-1))


def gradient(network: Network, minibatch: Minibatch, scheme: Scheme, **options) -> torch.Tensor:
    network.zero_grad()
    minibatch.accumulate(scheme, **options)
    return torch.cat([p.grad.flatten() for p in network.parameters()])


@pytest.fixture
def batch() -> tuple[Network, Minibatch]:
    network, generator = Network(), torch.Generator().manual_seed(0)
    noise = torch.randn(3, 2, 4, dtype=torch.float64, generator=generator)
    trajectory = sample(network, noise, SIGMAS, Dance(0.7), generator)
    return network, Minibatch(network, trajectory, STEPS, ADVANTAGES, clip_range=0.1)


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("velocities", ["rollout", "recompute"])
def test_exact_on_steps_of_each(batch, velocities, chunk):
    network, minibatch = batch
    together = gradient(
        network,
        minibatch,
        exact(SIGMAS[STEPS].mean(1)),
        velocities=velocities,
        policy_version=0,
        anchor_chunk=chunk,
    )
    alone = torch.zeros_like(together)
    for b in range(3):
        one = Minibatch(
            network,
            minibatch.trajectory.samples([b]),
            STEPS[:, b].tolist(),
            ADVANTAGES[b : b + 1],
            clip_range=0.1,
            scale=1 / 4 / 3,
        )
        alone += gradient(network, one, exact(SIGMAS[STEPS[:, b]]), velocities="recompute")
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-14)


def test_jagg_with_weights_of_each(batch):
    """Groups that every sample draws for itself, as the early code does: weights (n, k, B)."""
    network, minibatch = batch
    schemes = [jagg(SIGMAS[STEPS[:, b]], 4) for b in range(3)]
    shared = Scheme(
        "jagg", SIGMAS[STEPS].mean(1), schemes[0].anchors, torch.stack([s.weights for s in schemes], dim=2)
    )
    together = gradient(network, minibatch, shared, velocities="recompute")
    alone = torch.zeros_like(together)
    for b, scheme in enumerate(schemes):
        one = replace(
            minibatch,
            trajectory=minibatch.trajectory.samples([b]),
            steps=STEPS[:, b].tolist(),
            advantages=ADVANTAGES[b : b + 1],
            scale=1 / 4 / 3,
        )
        alone += gradient(network, one, scheme, velocities="recompute")
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-14)


def test_steps_that_are_the_same_for_all_are_the_list_of_them(batch):
    network, minibatch = batch
    same = torch.tensor([1, 2, 5])
    scheme = exact(SIGMAS[same])
    listed = gradient(network, replace(minibatch, steps=same.tolist()), scheme, velocities="recompute")
    each = replace(minibatch, steps=same[:, None].expand(3, 3))
    assert torch.equal(gradient(network, each, scheme, velocities="recompute"), listed)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (STEPS[:, :2], "a column for each of 3 samples"),
        (STEPS.flip(0), "strictly increasing"),
        (STEPS + 2, "one or more of 0..8"),
    ],
)
def test_steps_that_are_none_are_refused(batch, steps, message):
    with pytest.raises(ValueError, match=message):
        _ = batch[1].trajectory.trained(steps)


def test_steps_of_different_kernels_are_refused(batch):
    trajectory = batch[1].trajectory
    mixed = replace(trajectory, kernels=(Dance(0.7), Flow(0.5), *trajectory.kernels[2:]))
    with pytest.raises(ValueError, match="different kernels"):
        mixed.trained(STEPS)
