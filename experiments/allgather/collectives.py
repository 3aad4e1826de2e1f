"""The collectives of one update under FSDP, counted block by block, and how far its gradient is off.

`experiments.allgather.measure` tabulates what is counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.tensor.debug import CommDebugMode

from experiments.allgather.layouts import problem, update
from experiments.allgather.wrappers import WRAPPERS
from repro.core.gradient import VelocityFn
from repro.distributed.ranks import Ranks


class _NoModules:
    """What CommDebugMode asks of its tracker of modules, without one: its hooks take most of the time."""

    name = "Global"
    is_bw = activation_checkpointing = False
    module_parents_dict: ClassVar[dict[str, list[str]]] = {name: []}

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Collectives(CommDebugMode):
    """CommDebugMode that tells a block's collectives from the root's, by size, and forward from backward.

    Attributes:
        calls: (phase, operation, size) of every all-gather and reduce-scatter, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.advanced_module_tracker = _NoModules()  # type: ignore[assignment]
        self.calls: list[tuple[str, str, int]] = []
        self._phase = "backward"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = getattr(func, "_overloadpacket", None)
        if packet is torch.ops.c10d._allgather_base_:
            self.calls.append((self._phase, "all_gather", args[0].numel()))  # the gathered output
        elif packet is torch.ops.c10d.allgather_:  # FSDP1's on a CPU: a list of every rank's part
            self.calls.append((self._phase, "all_gather", sum(part.numel() for part in args[0][0])))
        elif packet is torch.ops.c10d._reduce_scatter_base_:
            self.calls.append((self._phase, "reduce_scatter", args[1].numel()))  # the whole input
        return super().__torch_dispatch__(func, types, args, kwargs)

    def watch(self, velocity: VelocityFn) -> VelocityFn:
        """A velocity whose collectives are the forward's; whatever else happens is the backward's."""

        def watched(steps: Sequence[int], latents: Tensor) -> Tensor:
            self._phase = "forward"
            try:
                return velocity(steps, latents)
            finally:
                self._phase = "backward"

        return watched


def count(
    ranks: Ranks, groups: int, group_size: int, seed: int, rows: Sequence[tuple[str, str, bool, bool]]
) -> list[dict[str, Any]]:
    """The all-gather table's rows for (wrapper, layout, checkpointing, held back), alike on all ranks."""
    counted = []
    for wrapper, checkpointing in dict.fromkeys((row[0], row[2]) for row in rows):
        case = problem(ranks, groups, group_size, seed, checkpointing, WRAPPERS[wrapper])
        for _, layout, _, held_back in (row for row in rows if (row[0], row[2]) == (wrapper, checkpointing)):
            with Collectives() as log:
                backward_calls = update(case, layout, group_size, held_back, log.watch)
            error = gradient_error(case.policy.gradients(), case.reference[layout.split("-")[0]])
            case.policy.module.zero_grad()
            counted.append(
                {
                    "wrapper": wrapper,
                    "layout": layout,
                    "checkpointing": checkpointing,
                    "sync_held_back": held_back,
                    "ranks": ranks.size,
                    "blocks": len(case.policy.block_sizes),
                    "groups": groups,
                    "group_size": group_size,
                    "backward_calls": backward_calls,
                    **per_block(log, case.policy.block_sizes),
                    "gradient_error": error,
                }
            )
    return counted


def per_block(log: Collectives, sizes: Sequence[int]) -> dict[str, float]:
    """The collectives of the blocks' sizes, by kind and divided by the number of blocks; and the others.

    Raises:
        RuntimeError: if there were none, for then the sizes must be wrong.
    """
    of_blocks = [call[:2] for call in log.calls if call[2] in sizes]
    if not of_blocks:
        seen = sorted({call[2] for call in log.calls})
        raise RuntimeError(
            f"no collective has a block's size, one of {sorted(set(sizes))}: there were those of {seen}"
        )
    return {
        "all_gathers_forward": of_blocks.count(("forward", "all_gather")) / len(sizes),
        "all_gathers_backward": of_blocks.count(("backward", "all_gather")) / len(sizes),
        "reduce_scatters_backward": of_blocks.count(("backward", "reduce_scatter")) / len(sizes),
        "root_collectives": len(log.calls) - len(of_blocks),
    }


def gradient_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """‖found - expected‖ / ‖expected‖ over all parameters."""
    difference = sum(float((found[name] - g).square().sum()) for name, g in expected.items())
    return (difference / sum(float(g.square().sum()) for g in expected.values())) ** 0.5
