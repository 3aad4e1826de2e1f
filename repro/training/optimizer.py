"""A recipe's optimizer and the schedule of its learning rate.

AdamW's state is there from the start, at zero, as its first step would make it: so a checkpoint has the same
entries after any step, which reading one in place, part by part, relies on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from repro.training.recipe import Recipe


def make_optimizer(
    parameters: Sequence[nn.Parameter], recipe: Recipe, updates: int
) -> tuple[torch.optim.AdamW, LRScheduler]:
    """AdamW and its schedule.

    Args:
        parameters: sharded or not; their moments are as they are.
        recipe: learning rate, its schedule, weight decay.
        updates: optimizer steps in the whole run.
    """
    from diffusers.optimization import get_scheduler

    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    schedule = get_scheduler(
        recipe.schedule, optimizer, num_warmup_steps=recipe.warmup, num_training_steps=updates
    )
    return optimizer, schedule
