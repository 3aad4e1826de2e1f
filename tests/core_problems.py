"""Small float64 problems for the core's tests: a network, a trajectory and a clipped objective.

Everything is written out independently of `repro`, so that tests compare two derivations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repro.core.gradient import Surrogate
from repro.core.schemes.scheme import Scheme


def shifted_times(n: int, shift: float = 3.0, sampling_steps: int | None = None) -> Tensor:
    """The first n of a shifted schedule's sigmas; one more sampling step than trained ones by default."""
    steps = sampling_steps or n + 1
    x = 1 - torch.arange(n, dtype=torch.float64) / steps
    return shift * x / (1 + (shift - 1) * x)


class Network(nn.Module):
    """A smooth velocity field of (z, t), nonlinear in all it takes."""

    def __init__(self, dim: int, hidden: int = 7) -> None:
        super().__init__()
        self.inner = nn.Linear(dim + 1, hidden, dtype=torch.float64)
        self.outer = nn.Linear(hidden, dim, dtype=torch.float64)

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(torch.cat([z, t.expand(*z.shape[:-1], 1)], dim=-1))))


class Problem:
    """n steps, B samples in R^3, a network and a GRPO objective in which some samples are clipped.

    L_j = weight_b-weighted sum over samples of max(-A r, -A clip(r, 1 - ε, 1 + ε)), r the ratio of Gaussian
    transition densities of z_j + v_j Δ_j. Counts every pass of the network.
    """

    dim, clip, std = 3, 0.05, 0.3

    def __init__(self, n: int = 8, batch: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        g = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        self.n, self.batch, self.dtype = n, batch, dtype
        self.times = shifted_times(n)
        self.latents = draw(n, batch, self.dim)
        self.next_latents = self.latents + 0.2 * draw(n, batch, self.dim)
        self.advantages = draw(batch)
        torch.manual_seed(seed)
        self.network = Network(self.dim)
        with torch.no_grad():
            v = self.network(self.latents, self.times[:, None, None])
            # Old log-probabilities near the current ones, so that ratios fall on both sides of the clip.
            self.old_log_probs = self.log_prob(range(n), v) + 0.1 * draw(n, batch)
        self.samples = slice(None)
        self.checkpointing = False
        self.reset_counts()

    def reset_counts(self) -> None:
        self.forwards = self.tracked = self.backwards = self.backward_calls = self.network_calls = 0
        self.forwarded: list[int] = []

    def log_prob(self, steps: Sequence[int], v: Tensor) -> Tensor:
        steps = list(steps)
        delta = -0.1 - 0.05 * torch.arange(self.n, dtype=v.dtype)[steps]
        mean = self.latents[steps].to(v) + v * delta[:, None, None]
        return -(((self.next_latents[steps].to(v) - mean) / self.std) ** 2).mean(dim=-1) / 2

    def surrogate(self, steps: Sequence[int], v: Tensor) -> Surrogate:
        assert v.dtype == (torch.float64 if self.dtype == torch.float64 else torch.float32)
        steps = list(steps)
        if self.samples != slice(None):  # a sub-batch: evaluate all others at zero, keep these
            full = torch.zeros(len(steps), self.batch, self.dim, dtype=v.dtype)
            full[:, self.samples] = v
            v = full
        ratio = (self.log_prob(steps, v) - self.old_log_probs[steps].to(v)).exp()[:, self.samples]
        advantages = self.advantages.to(v)[self.samples]
        plain, clamped = -advantages * ratio, -advantages * ratio.clamp(1 - self.clip, 1 + self.clip)
        loss = torch.maximum(plain, clamped).sum(dim=1) / (self.n * self.batch)
        return Surrogate(loss, ratio, clamped > plain)

    def velocity(self, steps: Sequence[int], latents: Tensor) -> Tensor:
        steps = list(steps)
        self.forwards += len(steps)
        self.forwarded += steps

        def run(z: Tensor) -> Tensor:
            self.network_calls += len(steps)
            return self.network(z, self.times[steps][:, None, None])

        v = checkpoint(run, latents, use_reentrant=False) if self.checkpointing else run(latents)
        v = v.to(self.dtype)
        if v.requires_grad:
            self.tracked += len(steps)

            def on_backward(grad: Tensor) -> None:
                self.backwards += len(steps)
                self.backward_calls += 1

            v.register_hook(on_backward)
        return v

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.network.parameters())

    def take_grad(self) -> Tensor:
        """The accumulated .grad as one vector, and clear it and the counts."""
        flat = torch.cat([p.grad.flatten() for p in self.parameters])  # type: ignore[union-attr]
        self.network.zero_grad(set_to_none=True)
        self.reset_counts()
        return flat

    def rollout_velocities(self) -> Tensor:
        with torch.no_grad():
            return self.network(self.latents, self.times[:, None, None]).to(self.dtype)

    def exact_gradient(self) -> Tensor:
        """Plain autograd: one loss over all steps, one backward."""
        self.surrogate(range(self.n), self.velocity(range(self.n), self.latents)).loss.sum().backward()
        return self.take_grad()

    def estimate(self, scheme: Scheme, velocities: Tensor | None = None, steps: Sequence[int] = ()) -> Tensor:
        """Ĝ by its definition, one vector-Jacobian product per (anchor, step); s_j at `velocities` if given.

        Restricted to the rows in `steps`, if any.
        """
        weights = (
            scheme.weights if scheme.per_sample else scheme.weights[:, :, None].expand(-1, -1, self.batch)
        )
        total = torch.zeros(sum(p.numel() for p in self.parameters), dtype=torch.float64)
        at = self.rollout_velocities() if velocities is None else velocities
        for j in steps or range(self.n):
            v = at[[j]].clone().requires_grad_()
            (s,) = torch.autograd.grad(self.surrogate([j], v).loss.sum(), v)
            for k, a in enumerate(scheme.anchors):
                out = self.network(self.latents[[a]], self.times[[a]][:, None, None])
                grads = torch.autograd.grad(out, self.parameters, weights[j, k][None, :, None] * s)
                total += torch.cat([g.flatten() for g in grads])
        return total


def relative(a: Tensor, b: Tensor) -> float:
    """‖a - b‖ / ‖b‖."""
    return float((a - b).norm() / b.norm())


def flat_gradient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    grads = torch.autograd.grad(loss, list(parameters), allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in grads])
