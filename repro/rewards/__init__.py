"""Scorers: images and their prompts to one number each.

>>> from repro.rewards import load
>>> score = load("hpsv2:tiny-hpsv2")                      # bundled; or a path, or a hub id
>>> rewards = score(images, prompts)                      # (B, 3, H, W) in [0, 1], B texts -> (B,)

| spec | without a source |
|---|---|
| ``hpsv2[:SOURCE]`` | HPSv2.1 from the hub, xswu/HPSv2 |
| ``pickscore[:SOURCE]`` | yuvalkirstain/PickScore_v1 |
| ``clipscore[:SOURCE]`` | openai/clip-vit-large-patch14 |
| ``package.module:function`` | your own: function(images, prompts) -> B numbers |
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.errors import InputError

if TYPE_CHECKING:
    import torch

    from repro.rewards.base import Scorer

SCORERS = {
    "hpsv2": ("repro.rewards.hpsv2", "load"),
    "pickscore": ("repro.rewards.clip", "load_pickscore"),
    "clipscore": ("repro.rewards.clip", "load_clipscore"),
}
"""Kind -> module and the function in it that loads one."""

__all__ = ["Scorer", "check", "load", "local_path"]


def __getattr__(name: str) -> Any:  # the type loads torch, finding a scorer's files does not
    if name != "Scorer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repro.rewards.base import Scorer

    return Scorer


def load(spec: str, device: torch.device | str = "cpu") -> Scorer:
    """The scorer that `spec` names; see the table above.

    Args:
        spec: scorer and, after a colon, where its weights are; or a function of your own. Its module is
            looked for as Python does and in the working directory.
        device: where the scorer's weights live; images are moved there.

    Raises:
        ValueError: in one line, what is wrong with `spec` and what to do.
    """
    check(spec)
    kind, _, source = spec.partition(":")
    if kind in SCORERS:
        module, function = SCORERS[kind]
        return getattr(importlib.import_module(module), function)(source or None, device)
    if os.getcwd() not in sys.path:  # an installed command does not have it
        sys.path.append(os.getcwd())
    try:
        found = importlib.import_module(kind)
    except (ImportError, SyntaxError, TypeError, ValueError) as error:
        raise InputError(f"no scorer {spec}: importing {kind} failed ({error})") from error
    scorer = getattr(found, source, None)
    if not callable(scorer):
        raise InputError(f"no scorer {spec}: {kind} has no function {source}")
    from repro.rewards.base import UserScorer

    return UserScorer(spec, scorer)


def check(spec: str) -> None:
    """Refuse a name that no scorer can have, or whose files are not there, without loading anything.

    Raises:
        InputError: what is wrong with `spec` and what to do.
    """
    kind, _, source = spec.partition(":")
    if kind in SCORERS:
        local_path(spec)
    elif not source:
        raise InputError(
            f"no scorer {spec}: pass {', '.join(SCORERS)}, each optionally with :SOURCE, or your own as "
            "package.module:function"
        )


def local_path(spec: str) -> Path | None:
    """The folder or file whose content a scorer that loads depends on; None if it comes from the hub."""
    from repro.hub import locate

    kind, _, source = spec.partition(":")
    if kind in SCORERS:
        return locate(source, kind) if source else None
    found = importlib.util.find_spec(kind)
    return Path(found.origin) if found and found.has_location and found.origin else None
