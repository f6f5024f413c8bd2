"""Metrics of a run as a run of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl_core.data.store import flatten_metrics
from agentrl_core.exceptions import MissingDependencyError


class WeightsAndBiases:
    """Logs the numbers of each iteration to a run of Weights & Biases; give it to `collector.on_iteration`.

    Numbers of tables in the metrics are named with a slash, `collect/draws`, which is shown as sections. The step of a
    number is its iteration.

    Args:
        options: of `wandb.init`, such as `project`, `name`, `dir`, `mode="offline"`, `config=recipe.to_dict()`,
            and `id` with `resume="allow"` for a run that goes on.

    Raises:
        MissingDependencyError: wandb is not installed.

    Example:
        >>> import tempfile
        >>> from agentrl_core.integrations import WeightsAndBiases
        >>> write = WeightsAndBiases(project="demo", mode="disabled")  # collector.on_iteration(write)
        >>> write(0, {"loss": 0.5, "collect": {"draws": 8}})
        >>> write.close()
    """

    def __init__(self, **options: Any) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingDependencyError(
                "WeightsAndBiases needs the package wandb: pip install 'agentrl-core[wandb]'"
            ) from error
        self.run: Any = wandb.init(**options)

    def __call__(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Log the numbers of an iteration."""
        self.run.log(
            {name.replace(".", "/"): value for name, value in flatten_metrics(metrics).items()}, step=iteration
        )

    def close(self) -> None:
        """End the run."""
        self.run.finish()
