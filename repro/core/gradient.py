"""The one consumer of a scheme: accumulate Ĝ = Σ_k J_{a_k}ᵀ (Σ_j Φ[j, k] s_j) into the parameters' .grad.

It sees two callables and plain tensors, so it serves any network and any per-step objective:

    velocity(steps, latents) -> v              # (m, B, *shape) both; conditioning and guidance inside
    surrogate(steps, v) -> Surrogate           # the loss L_j of each step; no network inside

The gradient of a loss that is a sum over steps, L = Σ_j L_j(v_j), is G = Σ_j J_jᵀ s_j with s_j = ∂L_j/∂v_j.
Only J is ever interpolated: s_j passes through the real sampler transition and the real clipped objective at
the real v_j, so the clip acts as it does in the exact loss (the paper's method, steps 1 to 4). What is
forwarded when is decided by `plan.py`.

To lift this into a trainer, replace its loop of per-step backwards by

    scheme = jagg(times=sigmas[:20], groups=4)
    for minibatch in minibatches:
        accumulate_gradient(scheme, velocity, surrogate, minibatch.latents)
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from repro.core.cost import Counts
from repro.core.plan import Velocities, chunked, plan
from repro.core.schemes.scheme import Scheme

Stale = Literal["refuse", "recompute", "correct"]


class Surrogate(NamedTuple):
    """The objective at m steps.

    Attributes:
        loss: (m,), L_j of each step, already reduced over samples and scaled; L_j depends on v_j alone.
        ratio: (m, B), importance ratios, or None where the objective has none.
        clipped: (m, B) bool, where the clip stops the gradient, or None.
    """

    loss: Tensor
    ratio: Tensor | None = None
    clipped: Tensor | None = None


class VelocityFn(Protocol):
    """The network: velocities (m, B, *shape) at m steps, tracked where gradients are.

    Steps are a list, or an (m, B) tensor where every sample has its own (`repro.core.rollout.reindex`).
    """

    def __call__(self, steps: Any, latents: Tensor, /) -> Tensor: ...


class SurrogateFn(Protocol):
    """The objective, as a function of the velocities (m, B, *shape) at m steps."""

    def __call__(self, steps: Sequence[int], velocities: Tensor, /) -> Surrogate: ...


@dataclass
class RolloutVelocities:
    """The velocities a trajectory was sampled with.

    Attributes:
        velocities: (n, B, *shape), one for every step of the scheme.
        policy_version: of the weights that computed them.
    """

    velocities: Tensor
    policy_version: int


@dataclass(frozen=True)
class GradientReport:
    """What one call of `accumulate_gradient` saw and did.

    Attributes:
        loss: Σ L_j over the steps the scheme needs.
        ratio_mean: mean importance ratio over those steps and all samples; nan if the surrogate gives none.
        ratio_max_deviation: max |ratio - 1|; nan likewise.
        clip_fraction: share of (step, sample) pairs whose gradient the clip stopped; nan likewise.
        counts: passes really made, in steps.
        backward_calls: calls of torch.autograd.backward.
    """

    loss: float
    ratio_mean: float
    ratio_max_deviation: float
    clip_fraction: float
    counts: Counts
    backward_calls: int


def upstream_gradient(
    surrogate: SurrogateFn, steps: Sequence[int], velocities: Tensor
) -> tuple[Surrogate, Tensor]:
    """The surrogate and s_j = ∂L_j/∂v_j at given velocities, without touching the network.

    Args:
        surrogate: the objective.
        steps: m steps.
        velocities: (m, B, *shape); a detached copy, float32 at least, is what the surrogate sees.

    Returns:
        The surrogate, detached, and s (m, B, *shape) in the copy's dtype.
    """
    with torch.enable_grad():
        proxy = _at_least_float32(velocities).requires_grad_()
        result = surrogate(list(steps), proxy)
        if result.loss.shape != (len(steps),):
            raise ValueError(
                f"the surrogate must return {len(steps)} losses, one a step, got {tuple(result.loss.shape)}: "
                f"reduce over samples, not over steps"
            )
        (s,) = torch.autograd.grad(result.loss.sum(), proxy)
    detached = Surrogate(
        loss=result.loss.detach(),
        ratio=None if result.ratio is None else result.ratio.detach(),
        clipped=result.clipped,
    )
    return detached, s


def accumulate_gradient(
    scheme: Scheme,
    velocity: VelocityFn,
    surrogate: SurrogateFn,
    latents: Tensor,
    *,
    rollout: RolloutVelocities | None = None,
    policy_version: int | None = None,
    stale: Stale = "refuse",
    anchor_chunk: int = 2,
    forward_chunk: int | None = None,
    checkpointing: bool = False,
) -> GradientReport:
    """Add the scheme's estimate of ∇ Σ_j L_j to the .grad of everything `velocity` depends on.

    With the exact scheme this is what `loss.sum().backward()` over all steps does.

    Args:
        scheme: of n steps.
        velocity: the network.
        surrogate: the objective.
        latents: (n, B, *shape), z_j at the scheme's steps.
        rollout: velocities kept from sampling; without them they are computed again.
        policy_version: of the weights as they are now; required with `rollout`, which is fresh if its own is
            equal.
        stale: what to do with a rollout that is not fresh. ``refuse`` it, ``recompute`` the velocities, or
            ``correct`` them to first order from the anchors: v_j ≈ v_j_old + Σ_k Φ[j, k] (v_ak - v_ak_old).
        anchor_chunk: anchors stacked along the batch in one forward and one backward.
        forward_chunk: steps in one forward without gradient, and in one call of the surrogate; default
            anchor_chunk.
        checkpointing: whether the network recomputes activations in its backward; used for counting alone.

    Raises:
        ValueError: if the rollout is stale and `stale` is ``refuse``, or shapes do not agree.
    """
    _require_shapes(scheme, latents, rollout)
    source = _velocity_source(rollout, policy_version, stale)
    work = plan(scheme, source, anchor_chunk)
    forward_chunk = anchor_chunk if forward_chunk is None else forward_chunk
    tally = _Tally(checkpointing)
    upstream = latents.new_zeros(
        scheme.n_anchors, *latents.shape[1:], dtype=torch.promote_types(latents.dtype, torch.float32)
    )
    # Φ[j, k] against (B, *shape): one number, or one per sample.
    phi = scheme.weights.to(upstream).reshape(*scheme.weights.shape[:2], -1, *[1] * (latents.ndim - 2))

    def forward(steps: Sequence[int]) -> Tensor:
        steps = list(steps)  # which, unlike other sequences, index a tensor
        v = velocity(steps, latents[steps].detach())
        if v.shape != (len(steps), *latents.shape[1:]):
            raise ValueError(
                f"velocity must return the shape of its latents, {(len(steps), *latents.shape[1:])}, "
                f"got {tuple(v.shape)}"
            )
        tally.forwards += len(steps)
        return v

    def velocity_at(step: int, known: dict[int, Tensor]) -> Tensor:
        if step in known:
            return known[step]
        assert rollout is not None, "the plan forwards every step that no rollout covers"
        v = _at_least_float32(rollout.velocities[step]).to(latents.device)
        if source == "correct":
            for k in scheme.support(step):
                a = scheme.anchors[k]
                v = v + phi[step, k] * (known[a] - rollout.velocities[a].to(known[a]))
        return v

    def push_upstream(steps: Sequence[int], known: dict[int, Tensor]) -> None:
        """Compute s_j and spread it over the anchors, upstream[k] += Φ[j, k] s_j."""
        for chunk in chunked(steps, forward_chunk):
            v = torch.stack([velocity_at(j, known) for j in chunk])
            result, s = upstream_gradient(surrogate, chunk, v)
            tally.add(result)
            for j, s_j in zip(chunk, s.to(upstream.dtype), strict=True):
                for k in scheme.support(j):
                    upstream[k] += phi[j, k] * s_j

    known: dict[int, Tensor] = {}
    for chunk in chunked(work.untracked, forward_chunk):
        with torch.no_grad():
            known.update(zip(chunk, _at_least_float32(forward(chunk)), strict=True))
    push_upstream(work.early, known)
    known.clear()

    for columns, late in zip(work.chunks, work.late, strict=True):
        steps = [scheme.anchors[k] for k in columns]
        with torch.enable_grad():
            v = forward(steps)
        if not v.requires_grad:
            raise ValueError(
                "velocity returned no graph: no parameter requires grad, or it disables grad inside"
            )
        push_upstream(late, dict(zip(steps, _at_least_float32(v), strict=True)))
        torch.autograd.backward(v, upstream[list(columns)].to(v.dtype))
        tally.backwards += len(steps)
        tally.backward_calls += 1
    return tally.report()


def _at_least_float32(x: Tensor) -> Tensor:
    """x without its graph. Losses are computed in float32 whatever the network's dtype; float64 is kept."""
    return x.detach().to(torch.promote_types(x.dtype, torch.float32))


def _velocity_source(
    rollout: RolloutVelocities | None, policy_version: int | None, stale: Stale
) -> Velocities:
    if stale not in ("refuse", "recompute", "correct"):
        raise ValueError(f"stale must be 'refuse', 'recompute' or 'correct', got {stale!r}")
    if rollout is None:
        return "recompute"
    if policy_version is None:
        raise ValueError("a rollout's velocities need policy_version: pass the current weights' version")
    if rollout.policy_version == policy_version:
        return "rollout"
    if stale == "refuse":
        raise ValueError(
            f"the rollout's velocities are stale (policy version {rollout.policy_version}, now "
            f"{policy_version}): pass stale='recompute' or stale='correct'"
        )
    return stale


def _require_shapes(scheme: Scheme, latents: Tensor, rollout: RolloutVelocities | None) -> None:
    if latents.ndim < 2 or len(latents) != scheme.n_steps:
        raise ValueError(
            f"latents must be (n, B, *shape) with the scheme's n={scheme.n_steps} steps, "
            f"got {tuple(latents.shape)}: keep the trained steps"
        )
    batch = latents.shape[1]
    if scheme.per_sample and scheme.weights.shape[2] != batch:
        raise ValueError(
            f"the scheme has weights for {scheme.weights.shape[2]} samples, the latents hold {batch}"
        )
    if rollout is not None and rollout.velocities.shape != latents.shape:
        raise ValueError(
            f"the rollout's velocities must have the latents' shape {tuple(latents.shape)}, "
            f"got {tuple(rollout.velocities.shape)}: keep the trained steps"
        )


@dataclass
class _Tally:
    """Sums over the surrogate's calls, kept on the device until the report, and passes made."""

    checkpointing: bool
    forwards: int = 0
    backwards: int = 0
    backward_calls: int = 0
    losses: list[Tensor] = field(default_factory=list)
    ratios: list[Tensor] = field(default_factory=list)
    clipped: list[Tensor] = field(default_factory=list)

    def add(self, result: Surrogate) -> None:
        self.losses.append(result.loss)
        if result.ratio is not None:
            self.ratios.append(result.ratio.flatten())
        if result.clipped is not None:
            self.clipped.append(result.clipped.flatten().float())

    def report(self) -> GradientReport:
        ratio = torch.cat(self.ratios) if self.ratios else torch.tensor([torch.nan])
        clipped = torch.cat(self.clipped) if self.clipped else torch.tensor([torch.nan])
        return GradientReport(
            loss=float(torch.cat(self.losses).sum()) if self.losses else 0.0,
            ratio_mean=float(ratio.mean()),
            ratio_max_deviation=float((ratio - 1).abs().max()),
            clip_fraction=float(clipped.mean()),
            counts=Counts(self.forwards, self.backwards if self.checkpointing else 0, self.backwards),
            backward_calls=self.backward_calls,
        )
