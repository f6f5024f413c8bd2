"""How advantages came to be: what the page says of the recipe of each iteration."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import polars as pl

from agentrl_core import renames
from agentrl_core.component import Component
from agentrl_core.data.store import Store
from agentrl_core.exceptions import AgentRLError
from agentrl_core.recipe import Recipe

_SHOWN = ("reward", "advantage", "weight")


def recipes_of(store: Store) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The recipes that a run was made with, and which of them each closed iteration had, by its number as text."""
    writes = pl.DataFrame(store.writes)
    texts: dict[str, int] = {}
    made: list[dict[str, Any]] = []
    of: dict[str, int] = {}
    closed = writes.filter(pl.col("state").is_not_null()) if "state" in writes.columns else writes.clear()
    for iteration, state in closed.select("iteration", "state").rows():
        said = (json.loads(state) or {}).get("run")
        recipe = said.get("recipe") if isinstance(said, dict) else None
        if not isinstance(recipe, dict):
            continue
        text = json.dumps(recipe, sort_keys=True)
        if text not in texts:
            texts[text] = len(made)
            made.append(told(recipe))
        of[str(iteration)] = texts[text]
    return made, of


def told(table: dict[str, Any]) -> dict[str, Any]:
    """A recipe as the page tells it: its name, its source, and the components of the phases that make advantages."""
    try:
        table = renames.table().recipe(table)
        recipe: Recipe | None = Recipe.from_dict(table)
    except (AgentRLError, TypeError):  # a component of the user's own that is not installed here
        recipe = None
    phases = {}
    for phase in _SHOWN:
        links = table.get(phase) or []
        options = links if isinstance(links, list) else [links]
        known = recipe.chain(phase) if recipe is not None else [None] * len(options)
        if len(known) == len(options):
            phases[phase] = [_link(*each) for each in zip(options, known, strict=True)]
    return {"name": table.get("name", ""), "source": table.get("source", ""), "phases": phases}


def _link(options: dict[str, Any], component: Component | None) -> dict[str, Any]:
    text = inspect.getdoc(type(component)) or "" if component is not None else ""
    formula = re.search(r"\n\n((?: {4}\S.*\n?)+)", text.partition("\nArgs:")[0])
    return {
        "component": options.get("component", ""),
        "options": {name: value for name, value in options.items() if name != "component"},
        "says": " ".join(text.partition("\n\n")[0].split()),
        "formula": inspect.cleandoc(formula[1]) if formula else "",
    }
