"""A recipe's settings as command-line options: those given replace a preset's, the others stay."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, get_type_hints

from repro.recipes import Recipe

_HINTS = get_type_hints(Recipe)

if TYPE_CHECKING:
    Overrides = Recipe
else:
    # A subclass, so that tyro finds the help that is written beside the recipe's fields.
    Overrides = dataclasses.make_dataclass(
        "Overrides",
        [(f.name, _HINTS[f.name] | None, None) for f in dataclasses.fields(Recipe)],
        bases=(Recipe,),
        frozen=True,
    )
    Overrides.__doc__ = "Settings of the recipe, in place of the preset's."


def override(recipe: Recipe, overrides: Overrides) -> Recipe:
    """`recipe` with what is given in `overrides`; not yet validated."""
    given: dict[str, Any] = {f.name: getattr(overrides, f.name) for f in dataclasses.fields(Recipe)}
    return dataclasses.replace(recipe, **{name: value for name, value in given.items() if value is not None})
