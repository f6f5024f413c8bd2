"""The public names of the package: `python tests/support/public_names.py` lists them by module and counts them.

Public are the names of `agentrl_core` itself and of every module that it exports, those of `agentrl_core.component`
and of the errors. A module without `__all__` has the functions and classes that it defines. The systems in `recipes`
are a catalogue, not names to learn, and are not among them.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import agentrl_core

BESIDE = ("component", "exceptions")
"""Public modules that the root does not export."""


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module, sorted."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return sorted(declared)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    )


def public_names() -> dict[str, list[str]]:
    """Return the public names by module."""
    handed_on = [value for name in agentrl_core.__all__ if inspect.ismodule(value := getattr(agentrl_core, name))]
    beside = [importlib.import_module(f"agentrl_core.{name}") for name in BESIDE]
    return {module.__name__: names_of(module) for module in (agentrl_core, *handed_on, *beside)}


def main() -> None:
    """Print them."""
    names = public_names()
    for module, public in names.items():
        print(f"{module}  {len(public)}\n    {', '.join(public)}")  # noqa: T201
    print(f"in all  {sum(map(len, names.values()))}")  # noqa: T201


if __name__ == "__main__":
    main()
