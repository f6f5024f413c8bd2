"""Ways to the tools that people have: Polars, and dashboards of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core.integrations.tensorboard import TensorBoard
    from agentrl_core.integrations.wandb import WeightsAndBiases

_HOME = {"TensorBoard": "tensorboard", "WeightsAndBiases": "wandb"}

__all__ = ["TensorBoard", "WeightsAndBiases"]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
