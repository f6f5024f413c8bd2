"""torch, imported when it is first used: recipes are read, checked and printed without it."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "torch" in sys.modules:
    import torch
    from torch.nn import functional
else:

    class _Deferred:
        """Stands for a module until something of it is asked for; then it has all that the module has."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            module = importlib.import_module(self._name)
            self.__dict__.update(vars(module))
            return getattr(module, attribute)

    torch = _Deferred("torch")
    functional = _Deferred("torch.nn.functional")

__all__ = ["functional", "torch"]
