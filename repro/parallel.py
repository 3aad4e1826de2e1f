"""FSDP2 on torchrun: every rank holds a part of the weights and learns from a part of the samples.

A transformer block's weights are gathered (all-gather) whenever the block runs forward or backward, and its
gradients are averaged and scattered again (reduce-scatter) after a backward. The averaged gradient is the
single process's: with the samples split evenly over N ranks, a loss that is a mean over samples has

    ∇ mean_b L_b = (1/N) Σ_rank ∇ mean_{b on rank} L_b.

The model knows nothing of all this: `shard` wraps it from outside, and scheme, gradient and surrogate see an
ordinary module. What aggregation saves here is collectives as well as arithmetic; `experiments.allgather`
counts.

* A gathered block is kept for one run of one graph. So two separately computed endpoints make two all-gathers
  in their joint backward (and one reduce-scatter), endpoints stacked along the batch make one.
* The reduce-scatter after every backward but an update's last can be held back (`sync_once`), at the price of
  keeping unsharded gradients.
* A rank that ends closes its connections. Others that wait for it stop with a line that says so; torchrun
  ends those that do not. Only a rank that hangs needs the timeout.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from repro.gradient import VelocityFn
from repro.grpo import group_advantages

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's place among the others.

    Attributes:
        rank: 0 .. size - 1; rank 0 writes what there is to write.
        size: N, the number of processes.
        device: this rank's own.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's consecutive part, such as of the prompts; all ranks together have every item once.

        Raises:
            ValueError: if the items do not divide evenly. Unequal parts would weigh samples unequally, and
                ranks with fewer backwards would leave the others waiting.
        """
        if not items or len(items) % self.size:
            raise ValueError(
                f"{len(items)} items do not divide over {self.size} ranks: take a multiple of it"
            )
        each = len(items) // self.size
        return items[self.rank * each : (self.rank + 1) * each]


def launched() -> bool:
    """Whether torchrun, or something that speaks like it, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def join(device: str = "cpu", timeout: float = 600.0, **rendezvous: Any) -> Iterator[Ranks]:
    """Join the other ranks, and leave them at the end.

    Args:
        device: "cpu" (gloo) or "cuda" (nccl, one GPU a process).
        timeout: seconds after which a rank that hangs, without having ended, counts as lost.
        rendezvous: init_method, rank and world_size where torchrun's environment is not there.

    Raises:
        ValueError: without torchrun's environment and without `rendezvous`.
        SystemExit: another rank was lost: a line that says so, status 1.
    """
    if not rendezvous and not launched():
        raise ValueError("no other ranks are known: start with torchrun --nproc_per_node N -m repro ...")
    place = torch.device(device)
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rendezvous.get("rank", 0))))
        torch.cuda.set_device(place)
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **rendezvous)
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), place)
    try:
        yield ranks
    except RuntimeError as error:
        if not _is_loss(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise SystemExit(
            f"repro: rank {ranks.rank} of {ranks.size} lost another rank ({reason}); its own message tells "
            "why, rerun the same command to resume"
        ) from None
    finally:
        dist.destroy_process_group()


def _is_loss(error: RuntimeError) -> bool:
    words = r"connection (closed|reset|refused)|broken pipe|timed? ?out|socket|remote process exited"
    return isinstance(error, dist.DistError) or bool(re.search(words, str(error), re.IGNORECASE))


def blocks(transformer: nn.Module) -> list[nn.Module]:
    """The transformer blocks, each to be sharded on its own: the classes that diffusers says not to split.

    Raises:
        ValueError: if there are none.
    """
    names = set(getattr(transformer, "_no_split_modules", None) or ())
    found = [module for module in transformer.modules() if type(module).__name__ in names]
    if not found:
        raise ValueError(f"{type(transformer).__name__} names no blocks in _no_split_modules: add theirs")
    return found


def shard(transformer: nn.Module, dtype: torch.dtype | None = None) -> FSDPModule:
    """Shard a transformer in place, each block on its own and the rest together, over all ranks.

    Weights and gradients become DTensors; gradients are averaged over the ranks. Turn checkpointing and LoRA
    on before this.

    Args:
        transformer: one that has `blocks`, with the same weights on every rank.
        dtype: of the gathered weights and of the computation, such as bfloat16; the sharded weights keep
            theirs, and gradients are reduced in float32. None computes in the weights' own.
    """
    # A block's inputs are left alone: FSDP would cast its float32 rotary embedding in the forward and not in
    # the recompute of a checkpoint, which then stops. The root casts what comes from outside.
    reduce_dtype = None if dtype is None else torch.float32
    # FLUX's blocks return views. What FSDP warns of is writing to them in place, which diffusers does not do.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    inner = MixedPrecisionPolicy(dtype, reduce_dtype, cast_forward_inputs=False)
    for block in blocks(transformer):
        fully_shard(block, mp_policy=inner)
    return fully_shard(transformer, mp_policy=MixedPrecisionPolicy(dtype, reduce_dtype))


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
        raise ValueError(f"{made} backwards were made where {backwards} were announced: announce them all")


def advantages_of_split_groups(rewards: Tensor, ranks: Ranks, clip: float = 5.0) -> Tensor:
    """This rank's advantages where every prompt's group of images is spread over all ranks.

    A group that lies on one rank needs no other: `repro.grpo.group_advantages`.

    Args:
        rewards: (P, G / N), this rank's images of the same P prompts.
        ranks: where this is.
        clip: see `group_advantages`.

    Returns:
        (P, G / N), each normalised within its group of G.
    """
    parts = [torch.empty_like(rewards) for _ in range(ranks.size)]
    dist.all_gather(parts, rewards.contiguous())
    return group_advantages(torch.cat(parts, dim=1), clip).chunk(ranks.size, dim=1)[ranks.rank]


def full_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Name -> gradient, unsharded; every rank must call it. Parameters without one are left out."""
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in gradients.items()}


def save(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    """Write weights, optimizer and progress, each rank its part; `folder` appears when all is written.

    Args:
        folder: of the checkpoint; one that is there is replaced.
        module: sharded or not.
        optimizer: over its parameters.
        progress: what else resuming takes, numbers and texts by name, the same on every rank.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    several = dist.is_initialized()
    main = not several or dist.get_rank() == 0
    partial = folder.with_name(f".{folder.name}.partial")
    if main:
        shutil.rmtree(partial, ignore_errors=True)
    if several:
        dist.barrier()
    weights, state = get_state_dict(module, optimizer)
    content = {"model": weights, "optimizer": state, "progress": progress}
    checkpoint.save(content, checkpoint_id=partial, no_dist=not several)
    if main:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    if several:
        dist.barrier()


def load(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    """Read into module, optimizer and `progress`, in place, what any number of ranks has saved.

    Args:
        folder, module, optimizer: as in `save`.
        progress: with the same names as at saving; the values are replaced.

    Raises:
        ValueError: if the folder is no checkpoint, or one of another model.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    if not (folder / ".metadata").is_file():
        raise ValueError(f"{folder} is no complete checkpoint: name another, or start anew without it")
    weights, state = get_state_dict(module, optimizer)
    content = {"model": weights, "optimizer": state, "progress": progress}
    try:
        checkpoint.load(content, checkpoint_id=folder, no_dist=not dist.is_initialized())
    except (checkpoint.CheckpointException, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(f"{folder} does not fit this model ({reason}): name one of its own") from error
    set_state_dict(module, optimizer, model_state_dict=weights, optim_state_dict=state)


def spawn(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Run `function(ranks, *args)` in `size` processes on this machine's CPU, without torchrun.

    Args:
        function: importable, so defined at a module's top.
        size: N.
        args: picklable.

    Returns:
        What each rank's function returned, in the order of ranks.

    Raises:
        torch.multiprocessing.ProcessException: a rank failed; the others were ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_spawned, (function, size, folder, args), nprocs=size)
        return [torch.load(Path(folder) / str(rank), weights_only=False) for rank in range(size)]


def _spawned(rank: int, function: Callable[..., Any], size: int, folder: str, args: tuple[Any, ...]) -> None:
    with join(init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size) as ranks:
        torch.save(function(ranks, *args), Path(folder) / str(rank))
