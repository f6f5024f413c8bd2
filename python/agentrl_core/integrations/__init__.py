"""Integrations with other tools: Polars, metrics dashboards, trainers and trajectory formats.

Import these subpackages by name: `integrations.verl`, `integrations.trl`, `integrations.slime` and
`integrations.trajectories`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core.integrations.sequences import Sequences
    from agentrl_core.integrations.tensorboard import TensorBoard
    from agentrl_core.integrations.wandb import WeightsAndBiases

_HOME = {"Sequences": "sequences", "TensorBoard": "tensorboard", "WeightsAndBiases": "wandb"}

__all__ = ["Sequences", "TensorBoard", "WeightsAndBiases"]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
