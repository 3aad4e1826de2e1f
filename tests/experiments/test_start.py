"""A training run's start: noise on the weights, of the size that is asked for."""

from __future__ import annotations

import copy

import pytest
import torch

from experiments.convergence.start import disturb


def test_noise_on_the_start_has_the_size_that_is_asked_for_and_is_the_same_every_time():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.LayerNorm(200))
    before = copy.deepcopy(network)
    again = copy.deepcopy(network)
    disturb(network, 0.5)
    disturb(again, 0.5)
    added = network[0].weight - before[0].weight
    assert float((added.std() / before[0].weight.std()).detach()) == pytest.approx(0.5, rel=0.02)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    for one, other in ((network[0].bias, before[0].bias), (network[1].weight, before[1].weight)):
        assert torch.equal(one, other), "vectors stay"
    untouched = copy.deepcopy(before)
    disturb(before, 0.0)
    assert torch.equal(before[0].weight, untouched[0].weight)
