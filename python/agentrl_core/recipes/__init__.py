"""Published systems as recipes, one small file each.

`recipes.GRPO` and `recipes.get("grpo")` are the same value; `recipes.names()` lists what there is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from agentrl_core.exceptions import RecipeError

if TYPE_CHECKING:
    from agentrl_core.recipe import Recipe
    from agentrl_core.recipes.arpo import ARPO
    from agentrl_core.recipes.gigpo import GIGPO
    from agentrl_core.recipes.grpo import GRPO
    from agentrl_core.recipes.rloo import RLOO

__all__ = ["ARPO", "GIGPO", "GRPO", "RLOO", "get", "names"]

_NAMES = ("arpo", "gigpo", "grpo", "rloo")


def names() -> list[str]:
    """The names of all recipes, sorted.

    Example:
        >>> from agentrl_core import recipes
        >>> recipes.names()
        ['arpo', 'gigpo', 'grpo', 'rloo']
    """
    return list(_NAMES)


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
    if name not in _NAMES:
        raise RecipeError(f"there is no recipe {name!r}; use one of: {', '.join(_NAMES)}")
    recipe: Recipe = getattr(importlib.import_module(f"agentrl_core.recipes.{name}"), name.upper())
    return recipe


def __getattr__(name: str) -> Recipe:
    if name.isupper() and name.lower() in _NAMES:
        return get(name.lower())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
