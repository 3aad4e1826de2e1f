"""Group advantages: invariances, equal rewards, clipping, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from repro.core.grpo import group_advantages

rewards_strategy = npst.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(2, 12)), elements=st.floats(-100, 100, width=32)
)


@given(rewards=rewards_strategy, shift=st.floats(-50, 50), scale=st.floats(0.01, 100))
def test_advantages_ignore_shift_and_positive_scale(rewards, shift, scale):
    rewards = torch.from_numpy(rewards)
    spread = rewards.amax(1) - rewards.amin(1)
    rewards = rewards[(spread == 0) | (spread > 1e-3)]  # smaller spreads drown in the shift's rounding
    if len(rewards):
        moved = group_advantages(scale * rewards + shift)
        torch.testing.assert_close(moved, group_advantages(rewards), rtol=1e-6, atol=1e-6)


@given(rewards=rewards_strategy)
def test_advantages_have_zero_mean_and_unit_std_or_vanish(rewards):
    rewards = torch.from_numpy(rewards)
    advantages = group_advantages(rewards, clip=math.inf)
    assert advantages.shape == rewards.shape
    assert advantages.mean(1).abs().max() < 1e-8
    for row, found in zip(rewards, advantages, strict=True):
        if row.max() - row.min() > 1e-12 * row.abs().max():
            assert found.std().item() == pytest.approx(1, abs=1e-8)
            assert found[row.argmax()] == found.max()  # order is kept; rewards too close may tie
        else:
            assert (found == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_rewards_have_exactly_zero_advantage(dtype):
    rewards = torch.tensor([[0.1] * 12, [0.0] * 12, [-1e30] * 12], dtype=dtype)
    assert (group_advantages(rewards) == 0).all()


def test_a_spread_of_rounding_counts_as_equal():
    row = torch.full((1, 4), 0.3)
    row[0, 0] = torch.nextafter(row[0, 0], torch.tensor(1.0))
    assert (group_advantages(row) == 0).all()
    assert group_advantages(torch.tensor([[1e-20, 2e-20]])).abs().min() > 0.7  # small, but not rounding


def test_advantages_are_clipped_per_row():
    rewards = torch.zeros(2, 64)
    rewards[0, 3], rewards[1, 5] = 1.0, -1.0
    advantages = group_advantages(rewards)
    assert advantages[0, 3] == 5 and advantages[1, 5] == -5
    assert group_advantages(rewards, clip=math.inf)[0, 3] == pytest.approx(
        63 / 8, rel=1e-6
    )  # (G - 1) / sqrt(G)
    expected = (rewards[0] - rewards[0].mean()) / rewards[0].std()
    torch.testing.assert_close(advantages[0], expected.clamp(-5, 5))


@pytest.mark.parametrize(
    ("rewards", "clip", "match"),
    [
        ([[1.0, math.nan]], 5.0, "1 of 2 rewards are nan or infinite"),
        ([[math.inf, -math.inf, 0.0]], 5.0, "2 of 3 rewards"),
        ([1.0, 2.0], 5.0, "expected \\(prompts, generations\\)"),
        ([[1.0]], 5.0, "at least two generations"),
        ([[1.0, 2.0]], 0.0, "advantage clip"),
    ],
)
def test_unusable_rewards_are_refused(rewards, clip, match):
    with pytest.raises(ValueError, match=match):
        group_advantages(torch.tensor(rewards), clip)
