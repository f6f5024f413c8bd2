"""Recipes use only public names, as a user's own recipe would."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from public_names import public_names

import agentrl_core

FOLDER = Path(agentrl_core.__file__).parent / "recipes"
FILES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")
PUBLIC = public_names()
OF_ONE_SYSTEM = {
    "agentrl_core.data.codes.CODES",
    "agentrl_core.replay.inject.reasons",
    "agentrl_core.replay.memory_rows.MemoryRows",
    "agentrl_core.reward.distance.success_distance",
    "agentrl_core.reward.edits.edit_distances",
    "agentrl_core.reward.group_comparison.max_at_k",
    "agentrl_core.reward.group_comparison.rank_agreement",
    "agentrl_core.reward.group_comparison.top_gap",
    "agentrl_core.reward.process.checklist",
    "agentrl_core.reward.process.information_gain",
    "agentrl_core.reward.risk.tail_risk",
    "agentrl_core.reward.risk.tracked_quantiles",
    "agentrl_core.reward.shape.add_noise",
    "agentrl_core.rollout.programs.repair.reasoning_steps",
    "agentrl_core.rollout.programs.repair.tokens_before",
    "agentrl_core.schedule.condition.Plateau",
    "agentrl_core.select.allocator.BanditAllocator",
    "agentrl_core.select.allocator.DecayAllocator",
    "agentrl_core.select.success_trackers.RecentVisits",
    "agentrl_core.select.tracker.grown",
    "agentrl_core.weight.select.above_quantile",
}
"""Functions and components that only one or two systems use, by the path of their module. The list may only shrink."""


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


def is_public(module: str, name: str) -> bool:
    """Return whether a package lists the name, or it is an operator on columns or belongs to another recipe."""
    of_operators = module.startswith("agentrl_core.operators.") and not name.startswith("_")
    return name in PUBLIC.get(module, ()) or of_operators or module.startswith("agentrl_core.recipes.")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_imports_public_names(path: Path) -> None:
    private_names = {f"{module}.{name}" for module, name in imported(path) if not is_public(module, name)}
    assert private_names <= OF_ONE_SYSTEM, (
        f"export what more than one recipe needs: {sorted(private_names - OF_ONE_SYSTEM)}"
    )


def test_names_of_one_system_are_used() -> None:
    assert len(FILES) > 200
    used = {f"{module}.{name}" for path in FILES for module, name in imported(path)}
    assert used >= OF_ONE_SYSTEM, f"no recipe needs these any more: {sorted(OF_ONE_SYSTEM - used)}"
