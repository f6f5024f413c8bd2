"""Published systems as recipes, one file each: `recipes.GRPO`, `recipes.get("grpo")`, `recipes.names()`.

A file `<name>.py` in this folder holds a system: what it is for, its formula and source, the components that only it
needs, and the `Recipe`, a constant that is the name in capitals. The folder is the list of systems.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from agentrl_core.exceptions import RecipeError

if TYPE_CHECKING:
    from agentrl_core.recipe import Recipe


def names() -> list[str]:
    """The names of all recipes, sorted.

    Example:
        >>> from agentrl_core import recipes
        >>> [name for name in recipes.names() if name.startswith("g")]
        ['gigpo', 'grpo']
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


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
        raise RecipeError(f"there is no recipe {name!r}; use one of: {', '.join(known)}")
    recipe: Recipe = getattr(importlib.import_module(f"{__name__}.{name}"), name.upper())
    return recipe


def __getattr__(name: str) -> Recipe:
    if name.isupper() and name.lower() in names():
        return get(name.lower())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*(name.upper() for name in names()), "get", "names"]
