"""Published systems as recipes, one file each: `recipes.GRPO`, `recipes.get("grpo")`, `recipes.names()`.

A file `<name>.py` in this folder defines one system: its purpose, formula and source, the components that only it
needs, and the `Recipe`, a constant with the name in capitals. The files of this folder are the list of recipes.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from typing import TYPE_CHECKING

from agentrl_core._util.near_names import near_names
from agentrl_core.exceptions import RecipeError

if TYPE_CHECKING:
    from agentrl_core.recipe import Recipe


def names() -> list[str]:
    """Return the names of all recipes, sorted.

    Example:
        >>> from agentrl_core import recipes
        >>> "grpo" in recipes.names()
        True
    """
    return list(_names())


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def get(name: str) -> Recipe:
    """Return the recipe of this name.

    Args:
        name: one of `names()`.

    Raises:
        RecipeError: no recipe has this name.

    Example:
        >>> from agentrl_core import recipes
        >>> recipes.get("grpo").source
        'arXiv:2402.03300'
    """
    known = names()
    if name not in known:
        hint = near_names(str(name), known, f"use one of: {', '.join(known)}")
        raise RecipeError(f"there is no recipe {name!r}; {hint}")
    recipe: Recipe = getattr(importlib.import_module(f"{__name__}.{name}"), name.upper())
    return recipe


def find(source: str) -> list[Recipe]:
    """Return the recipes of a publication.

    Args:
        source: the arXiv id, with or without `arXiv:` and a version, or the title, as in `Recipe.source`.

    Raises:
        RecipeError: no recipe has this source.

    Example:
        >>> from agentrl_core import recipes
        >>> [recipe.name for recipe in recipes.find("arXiv:2507.19849")]
        ['arpo']
    """
    bare_source = _bare(source)
    matches = [recipe for recipe in map(get, names()) if _bare(recipe.source) == bare_source]
    if not matches:
        raise RecipeError(
            f"no recipe has the source {source!r}; give one that `agentrl recipes` lists, such as 'arXiv:2507.19849'"
        )
    return matches


def _bare(source: str) -> str:
    """Return a source in lower case, without `arXiv:` and the version."""
    return re.sub(r"^arxiv:|(?<=\d)v\d+$", "", source.strip().lower())


def __getattr__(name: str) -> Recipe:
    if name.isupper() and name.lower() in names():
        return get(name.lower())
    hint = near_names(name, __dir__(), "recipes.names() lists the recipes")
    # With obj=None, Python adds no suggestion to the message.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {hint}", name=name, obj=None)


def __dir__() -> list[str]:
    return [*(name.upper() for name in names()), "find", "get", "names"]
