"""A transformer sharded by FSDP1 or by FSDP2, behind one interface."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import CustomPolicy

from experiments.allgather.config import FSDP1, FSDP2
from repro.distributed.fsdp import blocks, full_gradients, shard


@dataclass(frozen=True, eq=False)
class Sharded:
    """A transformer whose blocks are sharded each on its own, and the rest together.

    Attributes:
        module: to call in the transformer's place; its ``set_requires_gradient_sync(False)`` holds
            reduce-scatters back.
        block_sizes: how many numbers a collective of each block moves.
        gradients: name -> the whole gradient; every rank must call it.
    """

    module: Any
    block_sizes: tuple[int, ...]
    gradients: Callable[[], dict[str, Tensor]]


class _Root(FullyShardedDataParallel):
    def set_requires_gradient_sync(self, wanted: bool) -> None:
        """What FSDP1's `no_sync` does, by FSDP2's name."""
        parts: list[Any] = self.fsdp_modules(self)
        for part in parts:
            part._sync_gradients = wanted


def fsdp1(transformer: nn.Module) -> Sharded:
    """FullyShardedDataParallel with its defaults, so FULL_SHARD and the next block gathered ahead."""
    warnings.filterwarnings("ignore", message=".*(FSDP|FullyShardedDataParallel).*", category=FutureWarning)
    own = set(blocks(transformer))
    root = _Root(
        transformer,
        auto_wrap_policy=CustomPolicy(lambda module: module in own),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )

    def gradients() -> dict[str, Tensor]:
        with FullyShardedDataParallel.summon_full_params(root, with_grads=True):
            return {name: p.grad.clone() for name, p in root.named_parameters() if p.grad is not None}

    parts: list[Any] = [part for part in root.fsdp_modules(root) if part.module in own]
    # A rank holds its part of the one flat tensor that a block's parameters are put into, with padding.
    sizes = tuple(part._flat_param.numel() * dist.get_world_size() for part in parts)
    return Sharded(root, sizes, gradients)


def fsdp2(transformer: nn.Module, dtype: torch.dtype | None = None) -> Sharded:
    """`repro.distributed.fsdp.shard`; under a `dtype` the caller's autocast casts the inputs."""
    sizes = tuple(gathered_size(block, dist.get_world_size()) for block in blocks(transformer))
    module = shard(transformer, dtype, cast_inputs=dtype is None)
    return Sharded(module, sizes, lambda: full_gradients(transformer))


def gathered_size(block: nn.Module, ranks: int) -> int:
    """How many numbers a block's all-gather moves: FSDP2 pads every dim 0 to a multiple of the ranks."""
    return sum(-(-len(p) // ranks) * ranks * p[0].numel() for p in block.parameters())


WRAPPERS: dict[str, Callable[[nn.Module], Sharded]] = {FSDP1: fsdp1, FSDP2: fsdp2}
