"""Recipes in TRL: a `GRPOTrainer` with a recipe's advantage and loss, and rollouts of a `Collector`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core.integrations.trl.rollouts import Rollouts
    from agentrl_core.integrations.trl.trainer import RecipeTrainer
    from agentrl_core.integrations.trl.worker import RolloutWorker

_HOME = {"RecipeTrainer": "trainer", "RolloutWorker": "worker", "Rollouts": "rollouts"}

__all__ = ["RecipeTrainer", "RolloutWorker", "Rollouts"]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
