"""FSDP2 on torchrun: every rank holds a part of the weights and learns from a part of the samples.

A transformer block's weights are gathered (all-gather) whenever the block runs forward or backward, and its
gradients are averaged and scattered again (reduce-scatter) after a backward. The averaged gradient is the
single process's: with the samples split evenly over N ranks, a loss that is a mean over samples has

    ∇ mean_b L_b = (1/N) Σ_rank ∇ mean_{b on rank} L_b.

The model knows nothing of all this: `shard` wraps it from outside, and scheme, gradient and surrogate see an
ordinary module. What aggregation saves here is collectives as well as arithmetic;
`experiments.allgather.measure` counts.

* A gathered block is kept for one run of one graph. So two separately computed endpoints make two all-gathers
  in their joint backward (and one reduce-scatter), endpoints stacked along the batch make one. FSDP1, which
  DanceGRPO's trainers use, makes one for both.
* The reduce-scatter after every backward but an update's last can be held back (`sync_once`), at the price of
  keeping unsharded gradients.

Who does which part is `repro.distributed.ranks`'.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from repro.core.gradient import VelocityFn
from repro.core.grpo import group_advantages
from repro.distributed.ranks import Ranks, is_loss
from repro.errors import InputError


def blocks(transformer: nn.Module) -> list[nn.Module]:
    """The transformer blocks, each to be sharded on its own: the classes that diffusers says not to split.

    Raises:
        ValueError: if there are none.
    """
    names = set(getattr(transformer, "_no_split_modules", None) or ())
    found = [module for module in transformer.modules() if type(module).__name__ in names]
    if not found:
        raise InputError(f"{type(transformer).__name__} names no blocks in _no_split_modules: add theirs")
    return found


def shard(
    transformer: nn.Module, dtype: torch.dtype | None = None, *, cast_inputs: bool = True
) -> FSDPModule:
    """Shard a transformer in place, each block on its own and the rest together, over all ranks.

    Weights and gradients become DTensors; gradients are averaged over the ranks. Turn checkpointing and LoRA
    on before this. The ranks' devices are where the weights are.

    Args:
        transformer: one that has `blocks`, with the same weights on every rank.
        dtype: of the gathered weights and of the computation, such as bfloat16; the sharded weights keep
            theirs, and gradients are reduced in float32. None computes in the weights' own.
        cast_inputs: to `dtype`, those of the whole network; autocast does without, and keeps float32 where
            it matters.
    """
    # A block's inputs are left alone: FSDP would cast its float32 rotary embedding in the forward and not in
    # the recompute of a checkpoint, which then stops. The root casts what comes from outside.
    reduce_dtype = None if dtype is None else torch.float32
    # FLUX's blocks return views. What FSDP warns of is writing to them in place, which diffusers does not do.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(next(transformer.parameters()).device.type, (dist.get_world_size(),))
    inner = MixedPrecisionPolicy(dtype, reduce_dtype, cast_forward_inputs=False)
    for block in blocks(transformer):
        fully_shard(block, mesh=mesh, mp_policy=inner)
    outer = MixedPrecisionPolicy(dtype, reduce_dtype, cast_forward_inputs=cast_inputs)
    return fully_shard(transformer, mesh=mesh, mp_policy=outer)


@contextmanager
def sync_once(module: FSDPModule, velocity: VelocityFn, backwards: int) -> Iterator[VelocityFn]:
    """A velocity whose gradients are reduced after the last of an update's backwards only.

    Between them every rank keeps the whole model's gradient. `accumulate_gradient` makes one tracked call of
    the velocity before each backward, so those are counted: k / anchor_chunk, rounded up, for each of its
    calls.

    Args:
        module: what `shard` returned.
        velocity: one that runs it.
        backwards: how many there will be.

    Raises:
        ValueError: if there were not as many, in which case gradients were lost or reduced too early.
    """
    made = 0

    def counted(steps: Sequence[int], latents: Tensor) -> Tensor:
        nonlocal made
        if torch.is_grad_enabled():
            made += 1
            module.set_requires_gradient_sync(made == backwards)
        return velocity(steps, latents)

    try:
        yield counted
    finally:
        module.set_requires_gradient_sync(True)
    if made != backwards:
        raise InputError(f"{made} backwards were made where {backwards} were announced: announce them all")


def shared_advantages(rewards: Tensor, group_size: int, ranks: Ranks, clip: float = 5.0) -> Tensor:
    """This rank's advantages, normalised within groups that lie on one rank or on several.

    Args:
        rewards: (n,), of this rank's samples: those of `Ranks.parts`, all of them or, of whole groups, some
            of all ranks' groups at a time.
        group_size: G, the images of a prompt.
        ranks: where this is; all must call.
        clip: see `repro.core.grpo.group_advantages`.

    Returns:
        (n,), where the rewards are.
    """
    groups = ranks.cat(rewards).view(-1, group_size)
    return group_advantages(groups, clip).flatten().chunk(ranks.size)[ranks.rank].to(rewards.device)


def full(tensor: Tensor) -> Tensor:
    """A tensor, unsharded; where it is sharded every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Name -> gradient, unsharded; every rank must call it. Parameters without one are left out."""
    return {name: full(p.grad) for name, p in module.named_parameters() if p.grad is not None}


def full_weights(module: nn.Module, keep: bool = True) -> dict[str, Tensor]:
    """The state dict, unsharded, on the CPU where it was sharded; every rank must call it.

    Args:
        module: sharded or not.
        keep: False where it is not needed; then nothing is returned.
    """
    weights = {}
    for name, tensor in module.state_dict().items():
        whole = full(tensor)
        if keep:
            weights[name] = whole.cpu() if isinstance(tensor, DTensor) else whole
    return weights


def graph_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Name -> the parameter that a graph holds, for torch.autograd.grad: its gradient is this rank's own.

    A sharded parameter is in no graph: what stands there is its gathered form, the same tensor in every
    forward. Differentiated for in place of `backward`, it is not averaged over the ranks.
    """
    found: dict[str, nn.Parameter] = {}
    for part in _parts(module):
        part.unshard()
        found |= {name: p for name, p in module.named_parameters() if not isinstance(p, DTensor)}
        part.reshard()
    return {name: found.get(name, p) for name, p in module.named_parameters()}


def reshard(module: nn.Module) -> None:
    """Forget what is gathered: weights that are changed from outside would not be seen there."""
    for part in _parts(module):
        part.reshard()


def _parts(module: nn.Module) -> list[FSDPModule]:
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def like(values: Any, places: Any) -> Any:
    """Nested values, their tensors sharded as those at the same place of `places` are."""
    if isinstance(places, DTensor):
        return values if isinstance(values, DTensor) else _shard_like(values, places)
    if isinstance(values, dict) and isinstance(places, dict):
        return {key: like(value, places.get(key)) for key, value in values.items()}
    return values


def _shard_like(value: Tensor, place: DTensor) -> DTensor:
    return distribute_tensor(value.to(place.device), place.device_mesh, place.placements)


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write a state, each rank the shards it has; `folder` appears when all is written.

    Args:
        folder: of the checkpoint; one that is there is replaced.
        state: nested dicts of tensors, sharded or not, and of plain values that are the same on every rank.
    """
    from torch.distributed import checkpoint

    several = dist.is_initialized()
    main = not several or dist.get_rank() == 0
    partial = folder.with_name(f".{folder.name}.partial")
    if main:
        shutil.rmtree(partial, ignore_errors=True)
    if several:
        dist.barrier()
    checkpoint.save(state, checkpoint_id=partial, no_dist=not several)
    if main:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    if several:
        dist.barrier()


def load(folder: Path, state: dict[str, Any]) -> None:
    """Read into `state`, in place, what any number of ranks has saved.

    Args:
        folder: of the checkpoint.
        state: with the same names as at saving, sharded as it is wanted.

    Raises:
        ValueError: if the folder is no checkpoint, or one of another model.
        RuntimeError: if another rank was lost.
    """
    from torch.distributed import checkpoint

    if not (folder / ".metadata").is_file():
        raise InputError(f"{folder} is no complete checkpoint: name another, or start anew without it")
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    try:
        checkpoint.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    except (checkpoint.CheckpointException, RuntimeError, ValueError) as error:
        if is_loss(error):
            raise
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{folder} does not fit this model ({reason}): name one of its own") from error
