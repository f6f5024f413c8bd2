"""Log the metrics of a run to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl_core.data.store import flatten_metrics
from agentrl_core.exceptions import MissingDependencyError


class WeightsAndBiases:
    """Callback that logs the metrics of each iteration to Weights & Biases; pass it to `collector.on_iteration`.

    Nested metrics are named with a slash, such as `collect/draws`, which is shown as sections. The step of a metric is
    its iteration.

    Args:
        options: options of `wandb.init`, such as `project`, `name`, `dir`, `mode="offline"`, `config=recipe.to_dict()`,
            and `id` with `resume="allow"` for a resumed run.

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
        """Log the metrics of an iteration."""
        self.run.log(
            {name.replace(".", "/"): value for name, value in flatten_metrics(metrics).items()}, step=iteration
        )

    def close(self) -> None:
        """End the run of Weights & Biases."""
        self.run.finish()
