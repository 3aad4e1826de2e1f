"""JAGG reproduction suite: aggregated group gradients for GRPO on flow-matching transformers.

What the core exports (`repro.core`) is meant to be lifted into another trainer. It needs torch and nothing
else:

>>> import repro
>>> scheme = repro.jagg(times, groups=4)                  # which backwards, with which weights
>>> report = repro.accumulate_gradient(scheme, velocity, surrogate, latents)   # fills .grad

Models (``repro.models``), rewards (``repro.rewards``) and training (``repro.training``) bring in diffusers,
transformers and open_clip; import them explicitly.
"""

from __future__ import annotations

from typing import Any

from repro import core

__version__ = "0.1.0"
__all__ = ["__version__", *core.PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in core.PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(core, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *core.PUBLIC})
