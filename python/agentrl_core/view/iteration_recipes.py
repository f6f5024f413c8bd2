"""Describe each iteration's recipe in the page of a run, so that the page can explain advantages."""

from __future__ import annotations

import inspect
import json
import re
from contextlib import suppress
from typing import Any

import polars as pl

from agentrl_core import renames
from agentrl_core.component.component import PHASES, find_class, only_own_components
from agentrl_core.data.store import Store
from agentrl_core.exceptions import AgentRLError

_SHOWN = ("reward", "advantage", "weight")


def recipes_of(store: Store) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the recipes of a run, and for each closed iteration (as text) the index of its recipe."""
    writes = pl.DataFrame(store.write_log)
    texts: dict[str, int] = {}
    recipes: list[dict[str, Any]] = []
    of: dict[str, int] = {}
    closed = writes.filter(pl.col("state").is_not_null()) if "state" in writes.columns else writes.clear()
    for iteration, state in closed.select("iteration", "state").rows():
        run = (json.loads(state) or {}).get("run")
        recipe = run.get("recipe") if isinstance(run, dict) else None
        if not isinstance(recipe, dict):
            continue
        text = json.dumps(recipe, sort_keys=True)
        if text not in texts:
            texts[text] = len(recipes)
            recipes.append(described(recipe))
        of[str(iteration)] = texts[text]
    return recipes, of


def described(table: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe for the page: name, source, and components of the phases that make advantages.

    Stores may be untrusted, so no module that they name is imported: foreign components are shown by name only.
    """
    with suppress(AgentRLError):  # a removed component keeps its old name
        table = renames.table().recipe(table)
    phases = {}
    for phase in _SHOWN:
        links = table.get(phase) or []
        known = links if isinstance(links, list) else [links]
        phases[phase] = [_link(phase, options) for options in known if isinstance(options, dict)]
    return {"name": table.get("name", ""), "source": table.get("source", ""), "phases": phases}


def _link(phase: str, options: dict[str, Any]) -> dict[str, Any]:
    try:
        with only_own_components():
            text = inspect.getdoc(find_class(f"agentrl_core.{PHASES[phase]}", options)) or ""
    except AgentRLError:  # from another package, or another version of this one
        text = ""
    formula = re.search(r"\n\n((?: {4}\S.*\n?)+)", text.partition("\nArgs:")[0])
    return {
        "component": options.get("component", ""),
        "options": {name: value for name, value in options.items() if name != "component"},
        "purpose": " ".join(text.partition("\n\n")[0].split()),
        "formula": inspect.cleandoc(formula[1]) if formula else "",
    }
