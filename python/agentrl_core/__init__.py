"""Agentic reinforcement learning between the engine that generates rollouts and the optimizer.

    import agentrl_core as arl

The way of the data: select, rollout, reward, admit, advantage, weight, pack, loss, optimizer. Each phase is a folder
of small components; a recipe is a choice of them. Everything here is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core import (
        advantage,
        engine,
        env,
        loss,
        recipes,
        replay,
        reward,
        rollout,
        schedule,
        select,
        view,
        weight,
    )
    from agentrl_core._core import Table, __version__, num_threads, set_num_threads
    from agentrl_core.collect import Collector
    from agentrl_core.component.schedule import Schedule
    from agentrl_core.data.batch import Batch
    from agentrl_core.data.forest import Forest
    from agentrl_core.data.store import Store
    from agentrl_core.integrations import polars
    from agentrl_core.integrations.polars import scan
    from agentrl_core.model.annotate import annotate
    from agentrl_core.operators import group, keys, returns
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
    "annotate",
    "engine",
    "env",
    "group",
    "keys",
    "loss",
    "num_threads",
    "polars",
    "recipes",
    "replay",
    "returns",
    "reward",
    "rollout",
    "scan",
    "schedule",
    "select",
    "set_num_threads",
    "view",
    "warm_start",
    "weight",
]

_HOMES = {
    **{name: name for name in __all__},
    "Batch": "data.batch",
    "Collector": "collect",
    "Forest": "data.forest",
    "Recipe": "recipe",
    "Schedule": "component.schedule",
    "Store": "data.store",
    "Table": "_core",
    "__version__": "_core",
    "annotate": "model.annotate:annotate",
    "group": "operators.group",
    "keys": "operators.keys",
    "num_threads": "_core",
    "polars": "integrations.polars",
    "returns": "operators.returns",
    "scan": "integrations.polars",
    "set_num_threads": "_core",
    "warm_start": "train.warm_start",
}
"""To each name the module that has it; a package that has the name itself is what the name stands for."""

__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
