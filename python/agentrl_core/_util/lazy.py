"""Import the names of a package on first use, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package whose names are defined in its modules.

    Args:
        package: its `__name__`.
        homes: for each name its module, relative to the package. If the module itself has that name, the name is the
            module, unless the home is written `module:name`.

    Raises:
        AttributeError: by the returned function, for any other name.

    Example:
        >>> from agentrl_core._util.lazy import lazy
        >>> find = lazy("agentrl_core", {"Recipe": "recipe", "keys": "operators.keys"})
        >>> find("Recipe").__name__, find("keys").__name__
        ('Recipe', 'agentrl_core.operators.keys')
    """

    def found(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, _, attribute = homes[name].partition(":")
        module = importlib.import_module(f"{package}.{home}")
        value: Any = module if home.rpartition(".")[2] == name and not attribute else getattr(module, name)
        setattr(sys.modules[package], name, value)  # so that the next access is direct
        return value

    return found
