"""Between the engine that generates and the framework that steps: trajectories of agents, kept once, in Arrow memory.

    import agentrl_core as arl

The way of the data: select, rollout, reward, admit, advantage, weight, pack, loss, optimizer. Each phase is a folder
of small components; a recipe is a choice of them. Everything here is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl_core import advantage, engine, env, loss, recipes, reward, rollout, select, weight
    from agentrl_core._core import Table, __version__, num_threads, set_num_threads
    from agentrl_core.collect import Collector
    from agentrl_core.component.schedule import Schedule
    from agentrl_core.data.batch import Batch
    from agentrl_core.data.forest import Forest
    from agentrl_core.data.store import Store
    from agentrl_core.integrations import polars
    from agentrl_core.integrations.polars import scan
    from agentrl_core.operators import filters, group, keys, packing, returns, tree
    from agentrl_core.recipe import Recipe
    from agentrl_core.train import warm_start

__all__ = [
    "Batch",
    "Collector",
    "Forest",
    "Recipe",
    "Schedule",
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
    "polars",
    "recipes",
    "returns",
    "reward",
    "rollout",
    "scan",
    "select",
    "set_num_threads",
    "tree",
    "warm_start",
    "weight",
]

# Where the names live that are not packages here: modules of another package, and what a module holds.
_MODULES = {
    "filters": "operators",
    "group": "operators",
    "keys": "operators",
    "packing": "operators",
    "polars": "integrations",
    "returns": "operators",
    "tree": "operators",
    "warm_start": "train",
}
_VALUES = {
    "Batch": "data.batch",
    "Collector": "collect",
    "Forest": "data.forest",
    "Recipe": "recipe",
    "Schedule": "component.schedule",
    "Store": "data.store",
    "Table": "_core",
    "__version__": "_core",
    "num_threads": "_core",
    "scan": "integrations.polars",
    "set_num_threads": "_core",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _VALUES:
        value = getattr(importlib.import_module(f"{__name__}.{_VALUES[name]}"), name)
    else:
        value = importlib.import_module(".".join((__name__, *filter(None, (_MODULES.get(name),)), name)))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
