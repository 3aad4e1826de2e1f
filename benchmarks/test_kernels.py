"""The sampler's transitions and the surrogate, without a network."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Batch

from repro.core.gradient import upstream_gradient
from repro.core.sde import CPS, ODE, Dance, Flow, log_prob


@pytest.mark.parametrize("kernel", [Dance(0.3), Flow(0.7), CPS(0.3), ODE()], ids=lambda k: type(k).__name__)
def test_transition(timed: Any, batch: Batch, kernel: Any) -> None:
    latents, velocity = batch.trajectory.latents[1], batch.trajectory.velocities[1]
    sigma, sigma_next = batch.sigmas[1], batch.sigmas[2]
    timed(lambda: kernel.transition(latents, velocity, sigma, sigma_next), rounds=20)


def test_log_prob(timed: Any, batch: Batch) -> None:
    mean, std = Dance(0.3).transition(
        batch.trajectory.latents[1], batch.trajectory.velocities[1], batch.sigmas[1], batch.sigmas[2]
    )
    timed(lambda: log_prob(batch.trajectory.latents[2], mean, std, batch_dims=1), rounds=20)


def test_upstream_gradient_of_all_steps(timed: Any, batch: Batch) -> None:
    velocities = batch.trajectory.velocities[: batch.n_steps]
    timed(lambda: upstream_gradient(batch.minibatch.surrogate, range(batch.n_steps), velocities))
