"""torch, imported on first use: reading, checking and printing recipes does not need it."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from agentrl_core.exceptions import MissingDependencyError

if TYPE_CHECKING or sys.modules.get("torch"):
    import torch
    from torch.nn import functional
else:

    class _Deferred:
        """Placeholder of a module, which imports it on first attribute access."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            require_torch("a loss")
            module = importlib.import_module(self._name)
            self.__dict__.update(vars(module))
            return getattr(module, attribute)

    torch = _Deferred("torch")
    functional = _Deferred("torch.nn.functional")

__all__ = ["functional", "require_torch", "torch"]


def require_torch(what: str) -> None:
    """Raise an error with installation instructions if torch is missing.

    Raises:
        MissingDependencyError: torch is not installed.
    """
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs the package torch, which is not installed; pip install 'agentrl-core[torch]'"
        ) from error
