"""Names of a package that are imported when they are first asked for, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names live in modules below it.

    Args:
        package: its `__name__`.
        homes: to each name the module that has it, relative to the package; a module that has that name itself is
            what the name stands for, unless its home is written `module:name`.

    Raises:
        AttributeError: from the function, for any other name.

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
        setattr(sys.modules[package], name, value)  # found at once the next time
        return value

    return found
