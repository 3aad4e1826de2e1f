"""Where training starts from: the model's own weights, or these with noise on them.

The bundled generators know their pictures by heart: what they draw scores almost as their autoencoder's
reconstructions of the true pictures do (their cards), and training from there did not raise the reward on
other names (results/sweep/own-start). Noise on the weights (ours) leaves a policy that has something to learn
which holds for all prompts.
"""

from __future__ import annotations

import torch
from torch import nn


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
