"""Text form of components: the Python call that creates them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


def component_repr(component: Any) -> str:
    """Return a dataclass as the call that creates it, without options at their defaults: `Clip(high=0.28)`."""
    options = []
    for each in fields(component):
        value = getattr(component, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if value != default or type(value) is not type(default):
            options.append(f"{each.name}={value!r}")
    return f"{type(component).__name__}({', '.join(options)})"
