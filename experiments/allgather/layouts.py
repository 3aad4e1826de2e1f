"""One update under FSDP2, a sharded policy's gradient, in every layout.

`experiments.allgather.measure` says what the layouts are; `experiments.allgather.collectives` counts what
they gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments import paper
from repro.core.gradient import VelocityFn, accumulate_gradient, upstream_gradient
from repro.core.grpo import ClippedSurrogate
from repro.core.rollout import Trajectory, reindex, sample
from repro.core.schemes.groups import equal_step_groups
from repro.core.schemes.jagg import jagg
from repro.core.schemes.scheme import Scheme, exact
from repro.core.sde import Dance, shifted_sigmas
from repro.distributed.fsdp import blocks, full_gradients, shard, sync_once
from repro.distributed.ranks import Ranks
from repro.models import Conditioning, bind
from repro.models.synthetic import build

LAYOUTS = {
    "exact": "exact, step by step",
    "exact-stacked": "exact, W steps stacked",
    "jagg-early": "JAGG, early code: two backwards",
    "jagg-joint": "JAGG, two graphs, joint backward",
    "jagg-stacked": "JAGG, endpoints stacked",
    "jagg-rollout": "JAGG, stacked, rollout's velocities",
}


@dataclass(frozen=True, eq=False)
class Problem:
    """One update of a sharded policy on this rank's samples.

    Attributes:
        policy: sharded.
        block_sizes: of a block's collectives, one for each kind of block.
        n_blocks: how many blocks there are.
        velocity, surrogate, trajectory: of this rank's samples.
        schemes: by the first word of a layout's name.
        reference: for each scheme the single process's gradient on all ranks' samples.
    """

    policy: Any
    block_sizes: frozenset[int]
    n_blocks: int
    velocity: VelocityFn
    surrogate: ClippedSurrogate
    trajectory: Trajectory
    schemes: dict[str, Scheme]
    reference: dict[str, dict[str, Tensor]]


def problem(
    ranks: Ranks,
    groups: int,
    group_size: int,
    seed: int = 0,
    checkpointing: bool = False,
    dtype: torch.dtype | None = None,
    samples: int = 2,
) -> Problem:
    """Equal weights and one trajectory on every rank; `samples` of its samples are the rank's own.

    Args:
        ranks: where this is.
        groups, group_size: of the trained steps.
        seed: of weights, latents and advantages.
        checkpointing: of activations.
        dtype: of the network under autocast, the ranks' and the single process's, as a policy trains; the
            rollout is in float32.
        samples: each rank's.
    """
    backbone = build("flux-dev", torch.float32, "cpu", 64, reduced=True, seed=seed)
    policy = backbone.pipeline.transformer
    n = groups * group_size
    sigmas = shifted_sigmas(n + 1, paper.SHIFT.low)
    generator = torch.Generator().manual_seed(seed)
    total = samples * ranks.size
    conditioning = backbone.encode([""]).repeat(total)
    noise = torch.randn(total, *backbone.latent_shape(), generator=generator)
    velocity = bind(backbone, conditioning, sigmas)
    trajectory = sample(velocity, noise, sigmas, Dance(paper.ETA.low), generator)
    advantages = torch.randn(total, generator=generator)
    if checkpointing:
        policy.enable_gradient_checkpointing()

    def surrogate(part: slice) -> ClippedSurrogate:
        return ClippedSurrogate.from_trajectory(trajectory.samples(part), n, advantages[part], clip_range=0.1)

    def trained(conditioning: Conditioning) -> VelocityFn:
        return reindex(_autocast(bind(backbone, conditioning, sigmas), dtype), n)

    schemes = {"exact": exact(sigmas[:n]), "jagg": jagg(sigmas[:n], group_size)}
    reference = {}
    for name, scheme in schemes.items():
        accumulate_gradient(
            scheme, trained(conditioning), surrogate(slice(None)), trajectory.trained(n).latents
        )
        reference[name] = full_gradients(policy)
        policy.zero_grad()
    sizes = [gathered_size(block, ranks.size) for block in blocks(policy)]
    own = slice(ranks.rank * samples, (ranks.rank + 1) * samples)
    return Problem(
        policy=shard(policy, dtype, cast_inputs=dtype is None),
        block_sizes=frozenset(sizes),
        n_blocks=len(sizes),
        velocity=trained(conditioning.index(own)),
        surrogate=surrogate(own),
        trajectory=trajectory.samples(own),
        schemes=schemes,
        reference=reference,
    )


def _autocast(velocity: VelocityFn, dtype: torch.dtype | None) -> VelocityFn:
    def cast(steps: Sequence[int], latents: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            return velocity(steps, latents)

    return cast


def gathered_size(block: nn.Module, ranks: int) -> int:
    """How many numbers a block's all-gather moves: FSDP2 pads every dim 0 to a multiple of the ranks."""
    return sum(-(-len(p) // ranks) * ranks * p[0].numel() for p in block.parameters())


def update(
    case: Problem,
    layout: str,
    group_size: int,
    held_back: bool = False,
    watch: Callable[[VelocityFn], VelocityFn] = lambda velocity: velocity,
) -> int:
    """Accumulate the gradient of all groups in a layout; returns the calls of backward."""
    n = case.surrogate.n_steps
    if layout in ("jagg-early", "jagg-joint"):
        return _two_graphs(case, group_size, layout == "jagg-joint", held_back, watch(case.velocity))
    scheme = case.schemes[layout.split("-")[0]]
    chunk = {"exact": 1, "exact-stacked": group_size}.get(layout, 2)
    backwards = -(-scheme.n_anchors // chunk)
    rollout = case.trajectory.cache(n) if layout == "jagg-rollout" else None
    with _reduced(case, held_back, backwards, watch(case.velocity)) as velocity:
        report = accumulate_gradient(
            scheme,
            velocity,
            case.surrogate,
            case.trajectory.trained(n).latents,
            rollout=rollout,
            policy_version=0,
            anchor_chunk=chunk,
        )
    return report.backward_calls


@contextmanager
def _reduced(case: Problem, held_back: bool, backwards: int, velocity: VelocityFn) -> Iterator[VelocityFn]:
    if not held_back:
        yield velocity
        return
    with sync_once(case.policy, velocity, backwards) as counted:
        yield counted


def _two_graphs(case: Problem, group_size: int, joint: bool, held_back: bool, velocity: VelocityFn) -> int:
    """JAGG as the paper (`joint`) or its early code lays it out: each endpoint has a forward of its own.

    The early code forwards all W steps for their velocities, and the endpoints again for their graphs.
    """
    n = case.surrogate.n_steps
    latents = case.trajectory.trained(n).latents
    weights = case.schemes["jagg"].weights.float()
    groups = equal_step_groups(n, group_size)
    calls = 0
    for i, group in enumerate(groups):
        ends = (group[0], group[-1])
        with torch.no_grad():
            untracked = {j: velocity([j], latents[j : j + 1]) for j in (group[1:-1] if joint else group)}
        tracked = {j: velocity([j], latents[j : j + 1]) for j in ends}
        v = torch.cat([untracked[j] if j in untracked else tracked[j].detach() for j in group])
        _, s = upstream_gradient(case.surrogate, group, v)
        phi = weights[group.start : group.stop, 2 * i : 2 * i + 2]
        upstream = torch.tensordot(phi, s, dims=([0], [0]))[:, None]  # (2, 1, B, *shape)
        outputs = [tracked[j] for j in ends]
        passes = [slice(0, 2)] if joint else [slice(0, 1), slice(1, 2)]
        for part in passes:
            last = group is groups[-1] and part is passes[-1]
            case.policy.set_requires_gradient_sync(last or not held_back)
            torch.autograd.backward(outputs[part], list(upstream[part]))
            calls += 1
    return calls
