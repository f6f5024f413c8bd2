"""Log the metrics of a run to TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from agentrl_core.data.store import flatten_metrics
from agentrl_core.exceptions import MissingDependencyError


class TensorBoard:
    """Callback that writes the metrics of each iteration for TensorBoard; pass it to `collector.on_iteration`.

    Nested metrics are named with a slash, such as `collect/draws`, which TensorBoard shows as sections. A resumed run
    writes another file to the same folder.

    Args:
        folder: folder for the event files.

    Raises:
        MissingDependencyError: tensorboard is not installed.

    Example:
        >>> import tempfile
        >>> from agentrl_core.integrations import TensorBoard
        >>> write = TensorBoard(tempfile.mkdtemp())  # collector.on_iteration(write)
        >>> write(0, {"loss": 0.5, "collect": {"draws": 8}})
        >>> write.close()
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise MissingDependencyError(
                "TensorBoard needs the package tensorboard: pip install 'agentrl-core[tensorboard]'"
            ) from error
        self._writer: Any = Writer(fspath(folder))

    def __call__(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of an iteration, and flush the file."""
        for name, value in flatten_metrics(metrics).items():
            self._writer.add_scalar(name.replace(".", "/"), value, iteration)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
