"""Sampling a trajectory from the policy, with everything that training on it needs.

A trajectory of S sampling steps holds S + 1 latents, the S velocities that led from one to the next and the
log-probability of each transition. Step i goes from sigmas[i] to sigmas[i + 1]. The step that ends at 0 is
always Euler's: it adds no noise, has no density and is not trained (early code).

Keeping the velocities costs as much memory as the latents and spares the first update after the rollout every
forward but the anchors' (ours); `policy_version` says which weights they belong to.

Two step counts are in play, and only here do they meet. *Sampling steps* 0..S-1 index the trajectory.
*Trained steps* 0..n-1 index the sampling steps that training chose: a list for all samples, or an (n, B)
tensor with a column of its own for every sample, as where each draws its steps. Scheme, gradient and
surrogate know only trained steps. `Trajectory.trained(steps)` and `reindex(velocity, steps)` translate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from repro.core.gradient import RolloutVelocities, VelocityFn
from repro.core.sde import ODE, Kernel, log_prob

__all__ = ["Steps", "TrainedSteps", "Trajectory", "reindex", "sample"]

Steps: TypeAlias = int | Sequence[int] | Tensor
"""Chosen sampling steps: n for the first n, a list of n, or (n, B) int64, a column a sample; each strictly
increasing."""


class TrainedSteps(NamedTuple):
    """The part of a trajectory that n chosen steps need; see `Trajectory.trained`.

    Attributes:
        latents, next_latents, velocities: (n, B, *shape).
        sigmas, next_sigmas: (n,) or (n, B), where each step starts and ends.
        log_probs: (n, B).
        kernels: n of them.
    """

    latents: Tensor
    next_latents: Tensor
    sigmas: Tensor
    next_sigmas: Tensor
    velocities: Tensor
    log_probs: Tensor
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What `sample` records of S steps and B samples.

    Attributes:
        latents: (S + 1, B, *shape), from noise to the last step's result, in the dtype of the noise.
        sigmas: (S + 1,) float64 on the CPU, strictly decreasing.
        velocities: (S, B, *shape), as the policy returned them.
        log_probs: (S, B), mean over latent dimensions, at least float32, nan on steps without noise.
        kernels: S kernels as applied, ODE() where the step ended at sigma 0.
        policy_version: the caller's count of weight updates when the trajectory was sampled.
    """

    latents: Tensor
    sigmas: Tensor
    velocities: Tensor
    log_probs: Tensor
    kernels: tuple[Kernel, ...]
    policy_version: int = 0

    @property
    def n_steps(self) -> int:
        """S, the number of sampling steps."""
        return self.velocities.shape[0]

    @property
    def final(self) -> Tensor:
        """The last latents, (B, *shape): what the decoder takes."""
        return self.latents[-1]

    def samples(self, index: slice | Sequence[int] | Tensor) -> Trajectory:
        """The same trajectory for a subset of its B samples; a slice makes views, an index list copies."""
        return replace(
            self,
            latents=self.latents[:, index],
            velocities=self.velocities[:, index],
            log_probs=self.log_probs[:, index],
        )

    def trained(self, steps: Steps) -> TrainedSteps:
        """What training on chosen sampling steps takes; trained step j is sampling step steps[j].

        Args:
            steps: of all samples, where without gaps the result is views, or of each.

        Raises:
            ValueError: if steps are not such, or samples' steps have different kernels.
        """
        if isinstance(steps, Tensor):
            return self._trained_each(steps)
        steps = check_steps(steps, self.n_steps)
        here = _selector(steps)
        after = _selector([i + 1 for i in steps])
        return TrainedSteps(
            latents=self.latents[here],
            next_latents=self.latents[after],
            sigmas=self.sigmas[here],
            next_sigmas=self.sigmas[after],
            velocities=self.velocities[here],
            log_probs=self.log_probs[here],
            kernels=tuple(self.kernels[i] for i in steps),
        )

    def _trained_each(self, steps: Tensor) -> TrainedSteps:
        """Of (n, B) steps, every sample's own."""
        if steps.ndim != 2 or steps.shape[1] != self.velocities.shape[1]:
            raise ValueError(
                f"steps have shape {tuple(steps.shape)}, expected (n, B) with a column for each of "
                f"{self.velocities.shape[1]} samples"
            )
        for column in steps.T.tolist():
            check_steps(column, self.n_steps)
        kernels = [{self.kernels[i] for i in row} for row in steps.tolist()]
        if any(len(row) > 1 for row in kernels):
            raise ValueError("the samples' steps have different kernels: choose among steps of one")
        here, samples = steps.to(self.latents.device), torch.arange(steps.shape[1])
        return TrainedSteps(
            latents=self.latents[here, samples],
            next_latents=self.latents[here + 1, samples],
            sigmas=self.sigmas[steps],
            next_sigmas=self.sigmas[steps + 1],
            velocities=self.velocities[here, samples],
            log_probs=self.log_probs[here, samples],
            kernels=tuple(row.pop() for row in kernels),
        )

    def cache(self, steps: Steps) -> RolloutVelocities:
        """Velocities of chosen steps with the policy's version, for `accumulate_gradient(rollout=...)`."""
        return RolloutVelocities(self.trained(steps).velocities, self.policy_version)


def sample(
    velocity: VelocityFn,
    noise: Tensor,
    sigmas: Tensor,
    kernel: Kernel | Sequence[Kernel],
    generator: torch.Generator | None = None,
    policy_version: int = 0,
    progress: Callable[[int, int], None] | None = None,
    draw: Callable[[Tensor], Tensor] | None = None,
) -> Trajectory:
    """Samples from the policy, without gradients.

    Args:
        velocity: called with one sampling step at a time, velocity([i], latents (1, B, *shape)).
        noise: (B, *shape), the latents at sigmas[0]; its dtype is the trajectory's. Latents are rounded to it
            before their log-probability is taken, so that the update sees the transition that was scored.
        sigmas: (S + 1,) strictly decreasing in [0, 1].
        kernel: one for all steps, or S (a window of noise within an ODE). A step that ends at sigma 0 is ODE.
        generator: draws the transitions' noise, on its own device, in float32 or wider: the same seed gives
            the same trajectory. Steps without noise draw nothing.
        policy_version: kept with the trajectory; see `accumulate_gradient`.
        progress: called with (steps done, S) after each step.
        draw: standard normal numbers like the (1, B, *shape) tensor it is given, whatever their device; by
            default as many as are needed, from the generator.

    Raises:
        ValueError: if sigmas, the number of kernels or the velocity's shape are not as above.
    """
    sigmas = check_sigmas(sigmas)
    n_steps = len(sigmas) - 1
    kernels = _kernels(kernel, sigmas)
    draw = draw or (lambda like: standard_normal(like, generator))
    latents = noise.new_empty((n_steps + 1, *noise.shape))
    latents[0] = noise
    velocities: list[Tensor] = []
    log_probs: list[Tensor] = []
    with torch.no_grad():
        for i, step_kernel in enumerate(kernels):
            v = velocity([i], latents[i : i + 1])
            if v.shape != latents[i : i + 1].shape:
                raise ValueError(
                    f"velocity returned shape {tuple(v.shape)} at step {i}, expected {(1, *noise.shape)}: "
                    "return one velocity per step and sample, shaped like the latents"
                )
            mean, std = step_kernel.transition(latents[i : i + 1], v, sigmas[i], sigmas[i + 1])
            if bool((std > 0).all()):
                latents[i + 1] = (mean + std * draw(mean).to(mean.device))[0]
                log_probs.append(log_prob(latents[i + 1 : i + 2], mean, std)[0])
            else:
                latents[i + 1] = mean[0]
                log_probs.append(mean.new_full((noise.shape[0],), torch.nan))
            velocities.append(v[0])
            if progress is not None:
                progress(i + 1, n_steps)
    return Trajectory(
        latents, sigmas, torch.stack(velocities), torch.stack(log_probs), kernels, policy_version
    )


def standard_normal(like: Tensor, generator: torch.Generator | None, samples: int | None = None) -> Tensor:
    """Numbers like (1, B, *shape) ones, of B or another number of samples.

    They are drawn on the generator's device, so that a seed means the same whatever the latents live on.
    """
    shape = (1, like.shape[1] if samples is None else samples, *like.shape[2:])
    device = like.device if generator is None else generator.device
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=device)


def reindex(velocity: VelocityFn, steps: Steps) -> VelocityFn:
    """Turns a velocity over sampling steps into one over trained steps: j becomes steps[j].

    Of (n, B) steps m of them are an (m, B) tensor.

    The velocity that sampled the trajectory is thus what `accumulate_gradient` takes:
    reindex(velocity, steps), trajectory.trained(steps).latents, ClippedSurrogate.from_trajectory(trajectory,
    steps).
    """
    if isinstance(steps, Tensor):
        return lambda trained_steps, latents: velocity(steps[list(trained_steps)], latents)
    chosen = range(steps) if isinstance(steps, int) else list(steps)

    def trained_velocity(trained_steps: Sequence[int], latents: Tensor) -> Tensor:
        return velocity([chosen[j] for j in trained_steps], latents)

    return trained_velocity


def check_sigmas(sigmas: Tensor) -> Tensor:
    """`sigmas` as float64 on the CPU; a ValueError unless two or more, strictly decreasing, in [0, 1]."""
    sigmas = torch.as_tensor(sigmas, dtype=torch.float64, device="cpu")
    valid = sigmas.ndim == 1 and len(sigmas) > 1
    if not (valid and bool((sigmas[1:] < sigmas[:-1]).all()) and sigmas[0] <= 1 and sigmas[-1] >= 0):
        raise ValueError(
            f"sigmas are {sigmas.tolist()}, expected at least two, strictly decreasing, within [0, 1]: "
            "see shifted_sigmas"
        )
    return sigmas


def check_steps(steps: int | Sequence[int], n_steps: int) -> list[int]:
    """`steps` as a list; a ValueError unless one or more of 0..n_steps-1, strictly increasing."""
    chosen = list(range(steps)) if isinstance(steps, int) else [int(i) for i in steps]
    increasing = all(a < b for a, b in zip(chosen, chosen[1:], strict=False))
    if not chosen or not increasing or chosen[0] < 0 or chosen[-1] >= n_steps:
        raise ValueError(
            f"trained steps are {chosen}, expected one or more of 0..{n_steps - 1}, strictly increasing: "
            "give the number of first steps or a list of sampling steps"
        )
    return chosen


def _kernels(kernel: Kernel | Sequence[Kernel], sigmas: Tensor) -> tuple[Kernel, ...]:
    n_steps = len(sigmas) - 1
    kernels = list(kernel) if isinstance(kernel, Sequence) else [kernel] * n_steps
    if len(kernels) != n_steps:
        raise ValueError(f"{len(kernels)} kernels for {n_steps} steps: give one kernel, or one per step")
    if sigmas[-1] == 0:
        kernels[-1] = ODE()
    return tuple(kernels)


def _selector(steps: list[int]) -> slice | list[int]:
    contiguous = steps == list(range(steps[0], steps[-1] + 1))
    return slice(steps[0], steps[-1] + 1) if contiguous else steps
