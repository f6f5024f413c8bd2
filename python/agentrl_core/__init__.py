"""Between the engine that generates and the framework that steps: trajectories of agents, kept once, in Arrow memory.

    import agentrl_core as arl

The way of the data: select, rollout, reward, admit, advantage, weight, pack, loss, optimizer. Each phase is a folder
of small components; a recipe is a choice of them. Everything here is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl_core import (
        advantage,
        engine,
        env,
        filters,
        group,
        keys,
        loss,
        packing,
        recipes,
        returns,
        reward,
        rollout,
        select,
        tree,
        weight,
    )
    from agentrl_core._core import Table, __version__, num_threads, set_num_threads
    from agentrl_core.batch import Batch
    from agentrl_core.collect import Collector
    from agentrl_core.forest import Forest
    from agentrl_core.recipe import Recipe
    from agentrl_core.store import Store

__all__ = [
    "Batch",
    "Collector",
    "Forest",
    "Recipe",
    "Store",
    "Table",
    "__version__",
    "advantage",
    "engine",
    "env",
    "filters",
    "group",
    "keys",
    "loss",
    "num_threads",
    "packing",
    "recipes",
    "returns",
    "reward",
    "rollout",
    "select",
    "set_num_threads",
    "tree",
    "weight",
]

_HOMES = {
    "Batch": "batch",
    "Collector": "collect",
    "Forest": "forest",
    "Recipe": "recipe",
    "Store": "store",
    "Table": "_core",
    "__version__": "_core",
    "num_threads": "_core",
    "set_num_threads": "_core",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, name)}")
    value = getattr(home, name) if name in _HOMES else home
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
