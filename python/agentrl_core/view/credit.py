"""How advantages came to be: what the page says of the recipe of each iteration."""

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
    """The recipes that a run was made with, and which of them each closed iteration had, by its number as text."""
    writes = pl.DataFrame(store.write_log)
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
    """Return a recipe as the page shows it: its name, source, and the components of the phases that make advantages.

    A store may come from anyone, so nothing that it names is imported: other components than those of agentrl_core
    are shown by their names.
    """
    with suppress(AgentRLError):  # a component that was removed keeps its old name
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
    except AgentRLError:  # of another package, or of another version of this one
        text = ""
    formula = re.search(r"\n\n((?: {4}\S.*\n?)+)", text.partition("\nArgs:")[0])
    return {
        "component": options.get("component", ""),
        "options": {name: value for name, value in options.items() if name != "component"},
        "says": " ".join(text.partition("\n\n")[0].split()),
        "formula": inspect.cleandoc(formula[1]) if formula else "",
    }
