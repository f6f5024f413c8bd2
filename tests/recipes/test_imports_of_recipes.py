"""Recipes use only public names, as a user's own recipe would."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from public_names import public_names

import agentrl_core
from agentrl_core.component.component import PHASES, Component

PACKAGE = Path(agentrl_core.__file__).parent
FOLDER = PACKAGE / "recipes"
FILES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")
PUBLIC = public_names()
COMPONENTS = {
    name
    for phase in PHASES.values()
    for name, value in vars(importlib.import_module(f"agentrl_core.{phase}")).items()
    if inspect.isclass(value) and issubclass(value, Component) and not inspect.isabstract(value)
}
"""The components that the phases export."""

OF_FEW_RECIPES = {
    "AcceptAll": "the default of `Recipe.admit`",
    "AdaptiveKL": "a controller for the KL coefficient of any recipe",
    "Below": "the opposite of `Above`",
    "Dual": "the multiplier of any constraint, beside the other controllers",
    "EarlyStop": "docs/rollouts.md and docs/continuous.md present it for any recipe",
    "FlagLocator": "the default of `Repair.locator`",
    "MonteCarlo": "the tree search of Agent-R; its recipe pairs independent members",
    "PID": "a controller for any option that may change in a run; `LimitStaleness` shows it",
    "Pairs": "an option of recipes on pairs with groups larger than two, such as INPO",
    "Plateau": "a condition for any hook, such as a restart (`SyncModel`)",
    "SelectTokens": "the entropy filter for any recipe; `recipes.FORKING_TOKENS` filters by the current policy",
    "Uniform": "the default of `Recipe.select`",
    "Unscored": "docs/components.md presents it beside `FlagFilter`",
}
"""Components of a phase that at most one recipe uses and no other code, with the reason why they are kept there."""


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names of this package that a recipe uses: the module, and the name in it."""
    modules: dict[str, str] = {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "agentrl_core":
                    yield alias.name, ""
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "agentrl_core":
            for alias in node.names:
                yield node.module or "", alias.name
                value = getattr(importlib.import_module(node.module or ""), alias.name, None)
                if inspect.ismodule(value):
                    modules[alias.asname or alias.name] = value.__name__
    bound = {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            if modules.get(name, "").startswith("agentrl_core") and name not in bound:
                yield modules[name], node.attr


def used_inside(path: Path) -> Iterator[str]:
    """Yield the names that a file of the package imports; an `__init__` imports only to export."""
    if path.name != "__init__.py":
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                yield from (alias.name for alias in node.names)


def is_public(module: str, name: str) -> bool:
    """Return whether a package lists the name, or it is an operator on columns or belongs to another recipe."""
    of_operators = module.startswith("agentrl_core.operators.") and not name.startswith("_")
    return name in PUBLIC.get(module, ()) or of_operators or module.startswith("agentrl_core.recipes.")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_imports_public_names(path: Path) -> None:
    private = sorted(f"{module}.{name}" for module, name in imported(path) if not is_public(module, name))
    assert not private, f"use a public name, or move to the recipe what it alone needs: {private}"


def test_components_of_few_recipes_have_a_reason() -> None:
    assert len(FILES) > 200
    users = Counter(name for path in FILES for name in {name for _, name in imported(path)})
    others = {name for path in PACKAGE.rglob("*.py") if path.parent != FOLDER for name in used_inside(path)}
    few = {name for name in COMPONENTS - others if users[name] <= 1}
    assert few == OF_FEW_RECIPES.keys(), "move a component to its only recipe, remove an unused one, or give a reason"
