"""The order of work of one gradient: what is forwarded when, and where each s_j is computed.

First every s_j, then the anchors, in chunks: one forward on a chunk's anchors stacked along the batch, one
backward with their aggregated upstreams Σ_j Φ[j, k] s_j. Once the s_j are known any Φ can be chunked, and no
two chunks' graphs are alive together: `anchor_chunk=1` has the memory of the exact baseline, `anchor_chunk=2`
is the paper's joint backward.

s_j needs the velocity v_j, though not its graph. Where v_j comes from decides which forwards are left:

* ``rollout``: it was kept when the trajectory was sampled, and the weights have not changed since. None.
* ``recompute``: it is forwarded again without gradient, except that an anchor's own tracked forward gives it
  too.
* ``correct``: the outdated v_j is moved by the anchors' own change, v_j ≈ v_j_old + Σ_k Φ[j, k] (v_ak -
  v_ak_old).

An s_j may wait for a chunk's own forward when step j concerns no other chunk: when the support of row j of Φ,
and j itself if it is an anchor, lie inside it. So JAGG and the exact scheme cost n forwards for n steps, at
any chunk size.

`gradient.py` executes a plan and counts what it really does; `cost.py` prices one without running it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from repro.core.schemes.scheme import Scheme

Velocities = Literal["rollout", "recompute", "correct"]


@dataclass(frozen=True)
class Plan:
    """The order of work, in four parts.

    Attributes:
        untracked: steps to forward without gradient, before the anchors.
        early: steps whose s_j is computed before the anchors.
        chunks: columns of Φ that share one tracked forward and one backward, in order.
        late: for every chunk, the steps whose s_j is computed from its tracked forward.
    """

    untracked: tuple[int, ...]
    early: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]
    late: tuple[tuple[int, ...], ...]


def plan(scheme: Scheme, velocities: Velocities = "recompute", anchor_chunk: int = 2) -> Plan:
    """Order the work of `scheme` for a source of velocities and a number of anchors per backward.

    Raises:
        ValueError: if `velocities` is unknown, `anchor_chunk` is less than 1, or ``correct`` is asked of a
            scheme that cannot correct: one with a needed step that is no anchor and whose row does not sum to
            1.
    """
    chunks = tuple(chunked(range(scheme.n_anchors), anchor_chunk))
    needed = scheme.needed_steps
    column = {a: k for k, a in enumerate(scheme.anchors)}
    # Per step, the columns of the anchors it concerns: those that receive its s_j, and its own.
    concerns = {j: {*scheme.support(j), *([column[j]] if j in column else [])} for j in needed}
    home = {j: {k // anchor_chunk for k in columns} for j, columns in concerns.items()}

    if velocities == "rollout":
        waiting = set()
    elif velocities == "recompute":
        waiting = {j for j in needed if len(home[j]) == 1 and j in column}
    elif velocities == "correct":
        _require_interpolation(scheme, [j for j in needed if j not in column])
        waiting = {j for j in needed if len(home[j]) == 1}
    else:
        raise ValueError(f"velocities must be 'rollout', 'recompute' or 'correct', got {velocities!r}")

    early = tuple(j for j in needed if j not in waiting)
    untracked = {
        "rollout": (),
        "recompute": early,
        "correct": tuple(scheme.anchors[k] for k in sorted(set().union(*(concerns[j] for j in early)))),
    }[velocities]
    late = tuple(tuple(j for j in needed if j in waiting and home[j] == {c}) for c in range(len(chunks)))
    return Plan(untracked, early, chunks, late)


def _require_interpolation(scheme: Scheme, steps: list[int]) -> None:
    sums = scheme.weights[steps].sum(dim=1)
    if bool(((sums - 1).abs() > 1e-9).any()):
        raise ValueError(
            f"scheme {scheme.name!r} cannot correct velocities: its rows between anchors do not sum to 1; "
            f"recompute them instead"
        )


def chunked(items: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Cut `items` into consecutive tuples of `size`, the last possibly shorter."""
    if size < 1:
        raise ValueError(f"a chunk holds at least one step, got {size}: pass 1 or more")
    return (tuple(items[i : i + size]) for i in range(0, len(items), size))
