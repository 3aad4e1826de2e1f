"""The processes that torchrun started, as one thing: who does which part, and how parts come together.

One process alone is `ALONE`, a `Ranks` of size 1: its share is everything, gathering gives its own value, and
what rank 0 does it does. So an experiment is written once, for any number of ranks.

A rank that ends closes its connections. Others that wait for it stop with a line that says so; torchrun ends
those that do not. Only a rank that hangs needs the timeout.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous as meet

from repro.console import silent
from repro.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's place among the others.

    All ranks must call `gather`, `sum` and `on_main` in the same order.

    Attributes:
        rank: 0 .. size - 1; rank 0 writes what there is to write.
        size: N, the number of processes.
        device: this rank's own.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def main(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def share(self, items: Sequence[T], what: str = "items") -> Sequence[T]:
        """This rank's consecutive part, such as of the prompts; all ranks together have every item once.

        Args:
            items: on every rank the same.
            what: their name in the message.

        Raises:
            ValueError: if the items do not divide evenly. Unequal parts would weigh samples unequally, and
                ranks with fewer backwards would leave the others waiting.
        """
        if not items or len(items) % self.size:
            raise InputError(
                f"{len(items)} {what} do not divide over {self.size} ranks: take a multiple of it"
            )
        each = len(items) // self.size
        return items[self.rank * each : (self.rank + 1) * each]

    def parts(self, groups: int, each: int, what: str = "groups") -> list[tuple[int, range]]:
        """This rank's samples of groups that belong together, such as the images of every prompt.

        Whole groups where N divides their number, otherwise a part of one that others have the rest of.
        One rank after the other they are all samples, group by group.

        Args:
            groups: how many.
            each: samples of a group.
            what: the groups' name in the message.

        Returns:
            Pairs of a group and of the samples in it.

        Raises:
            ValueError: if the ranks would not get equally many; see `share`.
        """
        if groups % self.size == 0:
            return [(group, range(each)) for group in self.share(range(groups), what)]
        ranks_each, rest = divmod(self.size, groups)
        if rest or each % ranks_each:
            raise InputError(
                f"{groups} {what} with {each} samples each do not divide over {self.size} ranks: take a "
                "multiple of the ranks, or, for ranks to share a group's samples evenly, a divisor"
            )
        count = each // ranks_each
        first = self.rank % ranks_each * count
        return [(self.rank // ranks_each, range(first, first + count))]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks; what is gathered is pickled, so keep it small."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def cat(self, part: Tensor) -> Tensor:
        """(n, ...) of each rank -> (N n, ...), in the order of ranks; on the CPU if there are several."""
        return part if self.size == 1 else torch.cat(self.gather(part.cpu()))

    def mean(self, value: float) -> float:
        """The mean of every rank's value."""
        return sum(self.gather(value)) / self.size

    def sum(self, tensor: Tensor) -> Tensor:
        """The elementwise sum of every rank's tensor."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def on_main(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call on rank 0 alone; what it returns, or raises, every rank returns or raises."""
        if self.size == 1:
            return function(*args, **kwargs)
        outcome: list[Any] = [None, None]
        if self.main:
            try:
                outcome[0] = function(*args, **kwargs)
            except Exception as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def quiet(self) -> AbstractContextManager[None]:
        """Within this context rank 0 alone prints."""
        return nullcontext() if self.main else silent()


ALONE = Ranks()
"""One process, without others."""


def launched() -> bool:
    """Whether torchrun, or something that speaks like it, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def joined(device: str = "cpu") -> Iterator[Ranks]:
    """The ranks that torchrun started, joined and in the end left; `ALONE` without torchrun."""
    if not launched() or os.environ["WORLD_SIZE"] == "1":
        yield ALONE
        return
    with join(device) as ranks, ranks.quiet():
        yield ranks


@contextmanager
def join(device: str = "cpu", timeout: float = 600.0, **place: Any) -> Iterator[Ranks]:
    """Join the other ranks, and leave them at the end.

    An error that all ranks raise alike, such as a refused setting, is told by the first of them: the others
    end without a word, with the same status.

    Args:
        device: "cpu" (gloo) or "cuda" (nccl, one GPU a process).
        timeout: seconds after which a rank that hangs, without having ended, counts as lost.
        place: url, rank and world_size where torchrun's environment is not there.

    Raises:
        ValueError: without torchrun's environment and without `place`.
        SystemExit: another rank was lost: a line that says so, status 1. Or another rank tells the error:
            status 2, or 130 where it is an interrupt.
    """
    if not place and not launched():
        raise InputError("no other ranks are known: start with torchrun --nproc_per_node N -m repro ...")
    own = torch.device(device)
    if own.type == "cuda":
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", place.get("rank", 0))))
        torch.cuda.set_device(own)
    backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo"
    store, rank, size = next(meet(**{"url": "env://", **place}))
    store.set_timeout(timedelta(seconds=timeout))
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    try:
        yield Ranks(rank, size, own)
    except RuntimeError as error:
        if not is_loss(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise SystemExit(
            f"repro: rank {rank} of {size} lost another rank ({reason}); its own message tells "
            "why, rerun the same command to resume"
        ) from None
    except (ValueError, OSError, KeyboardInterrupt) as error:
        if _is_told(store, repr(error)):
            raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 2) from None
        raise
    finally:
        dist.destroy_process_group()


def is_loss(error: BaseException) -> bool:
    """Whether this is what a collective raises when another rank has ended, or hangs."""
    words = r"connection (closed|reset|refused)|broken pipe|timed? ?out|socket|remote process exited"
    if not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or bool(re.search(words, str(error), re.IGNORECASE))


def _is_told(store: dist.Store, complaint: str) -> bool:
    """Whether another rank was first to raise this."""
    try:
        return store.add(f"told {complaint}", 1) > 1
    except RuntimeError:  # the rank that kept the store has ended
        return False


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
    with join(url=f"file://{folder}/rendezvous", rank=rank, world_size=size) as ranks:
        torch.save(function(ranks, *args), Path(folder) / str(rank))
