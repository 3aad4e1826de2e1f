"""JAGG reproduction suite: aggregated group gradients for GRPO on flow-matching transformers.

The names below are the part meant to be lifted into another trainer. They need torch and nothing else, and
each is imported on first use, so that ``import repro`` and ``repro --help`` start at once:

>>> import repro
>>> scheme = repro.jagg(times, groups=4)                  # which backwards, with which weights
>>> report = repro.accumulate_gradient(scheme, velocity, surrogate, latents)   # fills .grad

Backbones (``repro.backbones``) and rewards (``repro.rewards``) bring in diffusers, transformers and
open_clip; import them explicitly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Scheme": "scheme",
    "compose": "scheme",
    "endpoints_only": "scheme",
    "equal_span_groups": "scheme",
    "equal_step_groups": "scheme",
    "exact": "scheme",
    "jagg": "scheme",
    "routed": "scheme",
    "step_subset": "scheme",
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
}

__all__ = [
    "CPS",
    "ClippedSurrogate",
    "CostModel",
    "Dance",
    "Flow",
    "GradientReport",
    "ODE",
    "RolloutVelocities",
    "Scheme",
    "Surrogate",
    "Trajectory",
    "__version__",
    "accumulate_gradient",
    "compose",
    "endpoints_only",
    "equal_span_groups",
    "equal_step_groups",
    "exact",
    "group_advantages",
    "jagg",
    "routed",
    "sample",
    "shifted_sigmas",
    "step_subset",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


if TYPE_CHECKING:
    from repro.cost import CostModel
    from repro.gradient import GradientReport, RolloutVelocities, Surrogate, accumulate_gradient
    from repro.grpo import ClippedSurrogate, group_advantages
    from repro.rollout import Trajectory, sample
    from repro.scheme import (
        Scheme,
        compose,
        endpoints_only,
        equal_span_groups,
        equal_step_groups,
        exact,
        jagg,
        routed,
        step_subset,
    )
    from repro.sde import CPS, ODE, Dance, Flow, shifted_sigmas
