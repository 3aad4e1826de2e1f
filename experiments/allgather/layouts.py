"""One update of a sharded policy in every layout of `experiments.allgather.config.LAYOUTS`.

`experiments.allgather.collectives` counts what they gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from experiments import paper
from experiments.allgather.wrappers import Sharded, fsdp2
from repro.core.gradient import VelocityFn, accumulate_gradient, upstream_gradient
from repro.core.grpo import ClippedSurrogate
from repro.core.rollout import Trajectory, reindex, sample
from repro.core.schemes.groups import equal_step_groups
from repro.core.schemes.jagg import jagg
from repro.core.schemes.scheme import Scheme, exact
from repro.core.sde import Dance, shifted_sigmas
from repro.distributed.fsdp import full_gradients, sync_once
from repro.distributed.ranks import Ranks
from repro.models import Conditioning, bind
from repro.models.synthetic import build

At: TypeAlias = Callable[[int], Tensor]
"""Step j -> (1, B, *shape), its velocity."""
Upstream: TypeAlias = Callable[[Tensor], Tensor]
"""A group's velocities -> the endpoints' upstream gradients."""
Sync: TypeAlias = Callable[[bool], None]
"""Told before a backward whether it is the group's last."""
GroupUpdate: TypeAlias = Callable[[range, At, Upstream, Sync], int]
"""Accumulates a group's gradient; returns the calls of backward."""


@dataclass(frozen=True, eq=False)
class Problem:
    """One update of a sharded policy on this rank's samples.

    Attributes:
        policy: sharded.
        velocity, surrogate, trajectory: of this rank's samples.
        schemes: by the first word of a layout's name.
        reference: for each scheme the single process's gradient on all ranks' samples.
    """

    policy: Sharded
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
    wrap: Callable[[nn.Module], Sharded] = fsdp2,
    dtype: torch.dtype | None = None,
    samples: int = 2,
) -> Problem:
    """Equal weights and one trajectory on every rank; `samples` of its samples are the rank's own.

    Args:
        ranks: where this is.
        groups, group_size: of the trained steps.
        seed: of weights, latents and advantages.
        checkpointing: of activations.
        wrap: shards the policy.
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
    sharded = wrap(policy)
    backbone.pipeline.transformer = sharded.module  # what `velocity` calls
    own = slice(ranks.rank * samples, (ranks.rank + 1) * samples)
    return Problem(
        policy=sharded,
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


def update(
    case: Problem,
    layout: str,
    group_size: int,
    held_back: bool = False,
    watch: Callable[[VelocityFn], VelocityFn] = lambda velocity: velocity,
) -> int:
    """Accumulate the gradient of all groups in a layout; returns the calls of backward."""
    n = case.surrogate.n_steps
    if layout in TWO_GRAPHS:
        return _two_graphs(case, group_size, TWO_GRAPHS[layout], held_back, watch(case.velocity))
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
    with sync_once(case.policy.module, velocity, backwards) as counted:
        yield counted


def _two_graphs(
    case: Problem, group_size: int, of_a_group: GroupUpdate, held_back: bool, velocity: VelocityFn
) -> int:
    """JAGG with a forward of its own for each endpoint; returns the calls of backward."""
    latents = case.trajectory.trained(case.surrogate.n_steps).latents
    weights = case.schemes["jagg"].weights.float()
    groups = equal_step_groups(case.surrogate.n_steps, group_size)
    calls = 0
    for i, group in enumerate(groups):
        phi = weights[group.start : group.stop, 2 * i : 2 * i + 2]

        def upstream(v: Tensor, group: range = group, phi: Tensor = phi) -> Tensor:
            """(W, B, *shape) velocities -> (2, 1, B, *shape), what the endpoints' backwards start from."""
            _, s = upstream_gradient(case.surrogate, group, v)
            return torch.tensordot(phi, s, dims=([0], [0]))[:, None]

        def at(j: int) -> Tensor:
            return velocity([j], latents[j : j + 1])

        def sync(last: bool, group: range = group) -> None:
            case.policy.module.set_requires_gradient_sync(not held_back or (last and group is groups[-1]))

        calls += of_a_group(group, at, upstream, sync)
    return calls


def _joint(group: range, at: At, upstream: Upstream, sync: Sync) -> int:
    """The paper's: graphs of both endpoints, then one backward through them."""
    ends = (group[0], group[-1])
    tracked = {j: at(j) for j in ends}
    with torch.no_grad():
        v = torch.cat([tracked[j].detach() if j in tracked else at(j) for j in group])
    sync(True)
    torch.autograd.backward([tracked[j] for j in ends], list(upstream(v)))
    return 1


def _early(group: range, at: At, upstream: Upstream, sync: Sync) -> int:
    """The early code's: all W steps for their velocities, then each endpoint again, with its own backward.

    Each backward follows its forward: at a backward's end FSDP1 lets go of the hooks of graphs that wait, and
    their own backward would find the weights freed.
    """
    with torch.no_grad():
        s = upstream(torch.cat([at(j) for j in group]))
    for part, j in zip(s, (group[0], group[-1]), strict=True):
        v = at(j)
        sync(j == group[-1])
        v.backward(part)
    return 2


TWO_GRAPHS: dict[str, GroupUpdate] = {"jagg-early": _early, "jagg-joint": _joint}
