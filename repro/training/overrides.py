"""A recipe's settings as command-line options: those given replace a preset's, the others stay.

Left out they are None; the help shows what the presets have.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro

from repro.training.recipe import PRESETS, Recipe

_HINTS = get_type_hints(Recipe)


def _option(name: str) -> Any:
    """The type of a setting's option, with the presets' values for the help."""

    def text(bundled: bool, algorithm: str) -> str:
        value = getattr(PRESETS[algorithm](bundled), name)
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def of(algorithm: str) -> str:
        small, full = text(True, algorithm), text(False, algorithm)
        return full if small == full else f"{small} for bundled models, else {full}"

    values = {algorithm: of(algorithm) for algorithm in PRESETS}
    same = len(set(values.values())) == 1
    default = of("dance_grpo") if same else "; ".join(f"{a}: {v}" for a, v in values.items())
    hint = tyro.conf.arg(help_behavior_hint=f"(default: {default})")
    return Annotated[_HINTS[name] | None, hint]


if TYPE_CHECKING:
    Overrides = Recipe
else:
    # A subclass, so that tyro finds the help that is written beside the recipe's fields.
    Overrides = dataclasses.make_dataclass(
        "Overrides",
        [(f.name, _option(f.name), None) for f in dataclasses.fields(Recipe)],
        bases=(Recipe,),
        frozen=True,
    )
    Overrides.__doc__ = "Settings of the recipe, in place of the preset's."


def override(recipe: Recipe, overrides: Overrides) -> Recipe:
    """`recipe` with what is given in `overrides`; not yet validated."""
    given: dict[str, Any] = {f.name: getattr(overrides, f.name) for f in dataclasses.fields(Recipe)}
    return dataclasses.replace(recipe, **{name: value for name, value in given.items() if value is not None})
