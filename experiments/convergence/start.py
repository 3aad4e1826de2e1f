"""Where training starts from: the model's own weights, or these with noise on them.

The bundled generators know their pictures by heart: what they draw scores almost as their autoencoder's
reconstructions of the true pictures do (their cards), and training from there did not raise the reward on
other names (results/sweep/own-start). Noise on the weights (ours) leaves a policy that has something to learn
which holds for all prompts.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from repro.errors import InputError

BUNDLED_NOISE = 0.6
"""Standard deviations of noise for models of the bundled size; others start as they are."""


def check_noise(noise: float) -> float:
    """The noise, if it is one.

    Raises:
        ValueError: below 0, or not finite.
    """
    if not (noise >= 0 and math.isfinite(noise)):
        raise InputError(f"start_noise is {noise}, expected 0 or more, in a weight's standard deviations")
    return noise


@torch.no_grad()
def disturb(transformer: nn.Module, noise: float) -> None:
    """Add Gaussian noise to every weight matrix, in place: the same in every call.

    Args:
        transformer: biases and norms, its vectors, stay as they are.
        noise: standard deviation, in standard deviations of the matrix's own entries.
    """
    if not noise:
        return
    generator = torch.Generator().manual_seed(0)
    for weight in transformer.parameters():
        if weight.dim() > 1:
            drawn = torch.randn(weight.shape, generator=generator)
            weight.add_((noise * weight.float().std() * drawn.to(weight.device)).to(weight.dtype))
