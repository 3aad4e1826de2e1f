"""Settings, names and columns of the all-gather table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.errors import InputError


@dataclass(frozen=True)
class Config:
    """The all-gather table's settings."""

    ranks: int = 2
    """processes, on this machine's CPU"""
    groups: int = 2
    """groups in the update"""
    group_size: int = 4
    """W, steps per group"""
    seed: int = 0
    """of weights, latents and advantages"""
    out: Path | None = None
    """results folder; results unless given"""
    fresh: bool = False
    """count everything again"""


def default(words: Sequence[str]) -> Config:
    """The same for every command line."""
    return Config()


def check(config: Config) -> None:
    """Refuse what cannot be counted.

    Raises:
        InputError: fewer than two ranks, no group, or groups without two ends.
    """
    if config.ranks < 2 or config.groups < 1 or config.group_size < 2:
        raise InputError(
            f"ranks is {config.ranks}, groups {config.groups}, group_size {config.group_size}: take 2 or "
            "more ranks, 1 or more groups of 2 or more steps"
        )


def outline(config: Config) -> str:
    """What a run of this configuration is about to do.

    Raises:
        InputError: see `check`.
    """
    check(config)
    return f"FLUX's blocks, reduced, on {config.ranks} ranks of this machine's CPU; about a minute"


FSDP1, FSDP2 = WRAPPERS = ("FSDP1", "FSDP2")
"""FullyShardedDataParallel, which DanceGRPO's trainers use, and its successor fully_shard, this suite's."""

LAYOUTS = {
    "exact": "exact, step by step",
    "exact-stacked": "exact, W steps stacked",
    "jagg-early": "JAGG, early code: two backwards",
    "jagg-joint": "JAGG, two graphs, joint backward",
    "jagg-stacked": "JAGG, endpoints stacked",
    "jagg-rollout": "JAGG, stacked, rollout's velocities",
}
"""How an update of groups of W steps calls the network, with its label.

- ``exact``: a forward and a backward a step;
- ``exact-stacked``: the group's W steps stacked along the batch, one forward and one backward;
- ``jagg-early``: the early code, W forwards without gradient, then both endpoints, a backward each;
- ``jagg-joint``: the paper's, two endpoint graphs and one joint backward;
- ``jagg-stacked``: the endpoints stacked in one forward and one backward, this suite's default;
- ``jagg-rollout``: the same with the velocities kept from the rollout.
"""

COLUMNS: dict[str, type] = {
    "wrapper": str,
    "layout": str,
    "checkpointing": bool,
    "sync_held_back": bool,
    "ranks": int,
    "blocks": int,
    "groups": int,
    "group_size": int,
    "backward_calls": int,
    "all_gathers_forward": float,
    "all_gathers_backward": float,
    "reduce_scatters_backward": float,
    "root_collectives": int,
    "gradient_error": float,
}
"""Collectives are per block over the whole update; ``root_collectives`` are those of what is in no block.
``gradient_error`` is relative to the single process's gradient of the same scheme."""
KEY = ("wrapper", "layout", "checkpointing", "sync_held_back")
