"""Diffusion transformers behind one interface: one file a family, a thin adapter on its diffusers pipeline.

>>> from repro.models import bind, load
>>> backbone = load("tiny-flux")                           # or a diffusers folder, or a hub id
>>> conditioning = backbone.encode(["noto red apple"]).repeat_interleave(12)
>>> velocity = bind(backbone, conditioning, sigmas)  # what repro.core.rollout and repro.core.gradient call
>>> images = backbone.decode(latents)                      # (12, 3, H, W) in [0, 1]

Adding a family is one file with a `Backbone` subclass and one line in `repro.models.loading.FAMILIES`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repro.models.base import Backbone, Conditioning, FlowModel, bind
    from repro.models.loading import load

__all__ = ["Backbone", "Conditioning", "FlowModel", "bind", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = "loading" if name == "load" else "base"
    return getattr(importlib.import_module(f"{__name__}.{place}"), name)
