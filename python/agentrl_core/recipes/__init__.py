"""Published systems as recipes, one file each: `recipes.GRPO`, `recipes.get("grpo")`, `recipes.names()`.

A file `<name>.py` in this folder holds a system: what it is for, its formula and source, the components that only it
needs, and the `Recipe`, a constant that is the name in capitals. The folder is the list of systems.
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
    """The names of all recipes, sorted.

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
    """The recipe of this name.

    Args:
        name: one of `names()`.

    Raises:
        RecipeError: there is no such recipe.

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
    """The recipes of a publication.

    Args:
        source: as `Recipe.source` has it: the arXiv id, with `arXiv:` and a version or without; or the title.

    Raises:
        RecipeError: no recipe has that source.

    Example:
        >>> from agentrl_core import recipes
        >>> [recipe.name for recipe in recipes.find("arXiv:2507.19849")]
        ['arpo']
    """
    wanted = _bare(source)
    found = [recipe for recipe in map(get, names()) if _bare(recipe.source) == wanted]
    if not found:
        raise RecipeError(
            f"no recipe has the source {source!r}; give one that `agentrl recipes` lists, such as 'arXiv:2507.19849'"
        )
    return found


def _bare(source: str) -> str:
    """A source without what is written in several ways."""
    return re.sub(r"^arxiv:|(?<=\d)v\d+$", "", source.strip().lower())


def __getattr__(name: str) -> Recipe:
    if name.isupper() and name.lower() in names():
        return get(name.lower())
    hint = near_names(name, __dir__(), "recipes.names() lists the recipes")
    # Without the object, Python adds no hint of its own.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {hint}", name=name, obj=None)


def __dir__() -> list[str]:
    return [*(name.upper() for name in names()), "find", "get", "names"]
