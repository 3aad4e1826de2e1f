r"""How close each scheme's gradient comes to the exact one, group by group, from one measurement.

Within a group every scheme's estimate is a combination of the same few vectors, P[a, j] = J_aᵀ s_j for
anchors a and steps j, with Φ's entries as coefficients, and the exact gradient is Σ_j P[j, j]:

    Ĝ = Σ_{j,a} Φ[j, a] P[a, j],      G = Σ_j P[j, j].

So the inner products of these vectors, their Gram matrix M, hold everything: with coefficient vectors ĉ and
c, cos(Ĝ, G) = ĉᵀMc / √(ĉᵀMĉ · cᵀMc). The vectors of a group of W are the 2W products with its first and last
step as anchors, and the W - 2 exact middles: 3W - 2 backwards, whatever the number of schemes compared.

The *middle-only* cosine restricts both sums to the steps between the group's ends. Only those are
approximated, so it cannot hide behind the ends, which JAGG has right by construction (ours; see the paper
notes on 1/√2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from repro.core.gradient import SurrogateFn, VelocityFn, upstream_gradient
from repro.core.schemes.scheme import Scheme

# Columns per float64 product: the copy stays in a processor's cache, which makes it five times as fast.
_COLUMNS = 1 << 14


@dataclass(frozen=True)
class Similarity:
    """An estimate Ĝ against the exact gradient G.

    Attributes:
        cosine: between Ĝ and G; nan if either is zero.
        middle_cosine: between the two sums over middle steps alone; nan if either is zero, so wherever a
            group has no middle steps or the scheme drops them.
        norm_ratio: ‖Ĝ‖ / ‖G‖; nan if G is zero.
        relative_error: ‖Ĝ - G‖ / ‖G‖; nan if G is zero.
    """

    cosine: float
    middle_cosine: float
    norm_ratio: float
    relative_error: float


@dataclass
class GroupProducts:
    """The vectors P[a, j] = J_aᵀ s_j of one group.

    Vectors of the same pairs add: the products of a batch are the sum of those of its samples, if the
    surrogates' scales are the batch's. Use ``total += products`` to accumulate over prompts.

    Attributes:
        group: the group's steps.
        pairs: (a, j) of each vector.
        vectors: (len(pairs), number of parameters).
    """

    group: range
    pairs: tuple[tuple[int, int], ...]
    vectors: Tensor

    def __iadd__(self, other: GroupProducts) -> GroupProducts:
        if (self.group, self.pairs) != (other.group, other.pairs):
            raise ValueError(
                f"products of {self.group} and {other.group} are different vectors: add like to like"
            )
        self.vectors += other.vectors
        return self

    def gram(self) -> GroupGram:
        """Their inner products, accumulated in float64."""
        m = len(self.pairs)
        matrix = torch.zeros(m, m, dtype=torch.float64, device=self.vectors.device)
        for columns in self.vectors.split(_COLUMNS, dim=1):
            block = columns.double()
            matrix += block @ block.T
        return GroupGram(self.group, self.pairs, matrix.cpu())


@dataclass(frozen=True)
class GroupGram:
    """Inner products of a group's vectors: all that its schemes' similarities depend on.

    Attributes:
        group: the group's steps.
        pairs: (a, j) of each row and column.
        matrix: (len(pairs), len(pairs)) float64.
    """

    group: range
    pairs: tuple[tuple[int, int], ...]
    matrix: Tensor


def gradient_products(
    velocity: VelocityFn,
    surrogate: SurrogateFn,
    latents: Tensor,
    groups: Iterable[range],
    parameters: Sequence[Tensor],
    *,
    velocities: Tensor | None = None,
) -> Iterator[GroupProducts]:
    """Measure the vectors of each group, one group at a time; .grad is left alone.

    One step's graph is alive at a time. A group of W holds 3W - 2 vectors of all `parameters`; restrict these
    (to a few blocks, say) where that is too much.

    Args:
        velocity: the network.
        surrogate: the objective.
        latents: (n, B, *shape), z_j of the trained steps.
        groups: which steps; any runs of them.
        parameters: tensors to differentiate for; those the network does not use count as zero.
        velocities: (n, B, *shape) from the rollout, if still those of the current weights; else one more
            forward a step computes them.

    Yields:
        One `GroupProducts` a group, in order, in float32 at least.
    """
    parameters = tuple(parameters)
    for group in groups:
        ends = (group[0], group[-1])
        upstream: dict[int, Tensor] = {}
        for j in group:
            if velocities is None:
                with torch.no_grad():
                    v = velocity([j], latents[[j]])
            else:
                v = velocities[[j]].to(latents.device)
            upstream[j] = upstream_gradient(surrogate, [j], v)[1]
        pairs: list[tuple[int, int]] = []
        vectors: list[Tensor] = []
        for a in group:
            targets = list(group) if a in ends else [a]
            with torch.enable_grad():
                v = velocity([a], latents[[a]].detach())
            for j in targets:
                more = j != targets[-1]
                grads = torch.autograd.grad(
                    v,
                    parameters,
                    upstream[j].to(v.dtype),
                    retain_graph=more,
                    allow_unused=True,
                    materialize_grads=True,
                )
                pairs.append((a, j))
                vectors.append(flatten(grads))
        yield GroupProducts(group, tuple(pairs), torch.stack(vectors))


def flatten(gradients: Iterable[Tensor | None]) -> Tensor:
    """Gradients as one vector, float32 at least; None is skipped, so pass zeros to keep places."""
    parts = [g.detach().flatten() for g in gradients if g is not None]
    dtype = torch.promote_types(torch.float32, parts[0].dtype)
    return torch.cat([p.to(dtype) for p in parts])


def similarity(gram: GroupGram, scheme: Scheme) -> Similarity:
    """One scheme against the exact gradient within one group.

    Args:
        gram: of the group, for one sample, a prompt's images or a batch.
        scheme: over the whole trajectory; its rows of this group must use this group's ends, or the step
            itself.

    Raises:
        ValueError: if the scheme needs a product that was not measured, or has per-sample weights.
    """
    if scheme.per_sample:
        raise ValueError(
            f"scheme {scheme.name!r} has per-sample weights, a Gram matrix sums over samples: use compare()"
        )
    if gram.group[-1] >= scheme.n_steps:
        raise ValueError(
            f"{gram.group} is outside the scheme's {scheme.n_steps} steps: build it over the trajectory"
        )
    place = {pair: i for i, pair in enumerate(gram.pairs)}
    estimate = torch.zeros(2, len(place), dtype=torch.float64)  # all steps; middle steps
    target = torch.zeros_like(estimate)
    for j in gram.group:
        rows = slice(0, 2 if j not in (gram.group[0], gram.group[-1]) else 1)
        target[rows, place[j, j]] = 1.0
        for k in scheme.support(j):
            pair = (scheme.anchors[k], j)
            if pair not in place:
                raise ValueError(
                    f"scheme {scheme.name!r} needs step {pair[0]} for step {j}, not measured in {gram.group}"
                )
            estimate[rows, place[pair]] = scheme.weights[j, k]

    def dot(x: Tensor, y: Tensor) -> float:
        return float(x @ gram.matrix @ y)

    (all_hat, middle_hat), (all_steps, middle) = estimate, target
    return _similarity(
        (dot(all_hat, all_hat), dot(all_hat, all_steps), dot(all_steps, all_steps)),
        (dot(middle_hat, middle_hat), dot(middle_hat, middle), dot(middle, middle)),
        max(dot(all_hat - all_steps, all_hat - all_steps), 0.0),
    )


def compare(
    estimate: Tensor, exact: Tensor, middle_estimate: Tensor | None = None, middle_exact: Tensor | None = None
) -> Similarity:
    """The same from two flat gradients, for any scheme: per-sample weights, anchors of other groups.

    Args:
        estimate: (number of parameters,), Ĝ.
        exact: (number of parameters,), G.
        middle_estimate: Ĝ's part from middle steps; with `middle_exact`, or the middle cosine is nan.
        middle_exact: G's part from middle steps.
    """

    def dot(x: Tensor, y: Tensor) -> float:
        return math.fsum(
            float(a.double() @ b.double()) for a, b in zip(x.split(_COLUMNS), y.split(_COLUMNS), strict=True)
        )

    middle = (math.nan, math.nan, math.nan)
    if middle_estimate is not None and middle_exact is not None:
        middle = (
            dot(middle_estimate, middle_estimate),
            dot(middle_estimate, middle_exact),
            dot(middle_exact, middle_exact),
        )
    difference = estimate.double() - exact.double()
    return _similarity(
        (dot(estimate, estimate), dot(estimate, exact), dot(exact, exact)),
        middle,
        dot(difference, difference),
    )


def _similarity(
    everything: tuple[float, float, float], middle: tuple[float, float, float], squared_error: float
) -> Similarity:
    """From (‖ĝ‖², ⟨ĝ, g⟩, ‖g‖²) over all steps and over the middles, and ‖ĝ - g‖²."""

    def cosine(hat: float, product: float, true: float) -> float:
        return product / math.sqrt(hat * true) if hat > 0 and true > 0 else math.nan

    hat, _, true = everything
    return Similarity(
        cosine=cosine(*everything),
        middle_cosine=cosine(*middle),
        norm_ratio=math.sqrt(hat / true) if true > 0 else math.nan,
        relative_error=math.sqrt(squared_error / true) if true > 0 else math.nan,
    )
