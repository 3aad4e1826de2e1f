"""The core: schemes, the gradient they estimate, and the samplers and objective around it.

Copy this folder: it needs torch and the standard library, and nothing here knows which network is trained.
`PUBLIC` lists what ``import repro`` offers, once; every name is imported when it is first used, so that
``import repro`` starts at once.
"""

from __future__ import annotations

import importlib
from typing import Any

PUBLIC = {
    "Scheme": "schemes.scheme",
    "compose": "schemes.scheme",
    "exact": "schemes.scheme",
    "step_subset": "schemes.scheme",
    "equal_span_groups": "schemes.groups",
    "equal_step_groups": "schemes.groups",
    "endpoints_only": "schemes.jagg",
    "jagg": "schemes.jagg",
    "routed": "schemes.jagg",
    "GradientReport": "gradient",
    "RolloutVelocities": "gradient",
    "Surrogate": "gradient",
    "accumulate_gradient": "gradient",
    "CostModel": "cost",
    "CPS": "sde",
    "Dance": "sde",
    "Flow": "sde",
    "ODE": "sde",
    "shifted_sigmas": "sde",
    "Trajectory": "rollout",
    "sample": "rollout",
    "ClippedSurrogate": "grpo",
    "group_advantages": "grpo",
    "Minibatch": "minibatch",
}
"""Public name -> the module of this package that defines it."""

__all__ = [*PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
