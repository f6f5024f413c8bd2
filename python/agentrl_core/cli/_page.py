"""What there is to say about a recipe: its page, as the terminal and the catalogue show it."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentrl_core import recipes
from agentrl_core.component import Column
from agentrl_core.component.component import PHASES
from agentrl_core.component.requirements import facts_of
from agentrl_core.recipe import Recipe

_PLAIN = Recipe(name="plain")


@dataclass(frozen=True)
class Page:
    """A recipe with what its file says about it.

    Args:
        recipe: the recipe.
        text: the docstring of its file; empty where it is a user's.
    """

    recipe: Recipe
    text: str = ""

    @classmethod
    def of(cls, name: str) -> Page:
        """The page of a file of `recipes/`."""
        recipe = recipes.get(name)
        return cls(recipe, inspect.getdoc(importlib.import_module(f"agentrl_core.recipes.{name}")) or "")

    @property
    def purpose(self) -> str:
        """What it is for: the first sentence of its file."""
        return " ".join(self.text.partition("\n\n")[0].split())

    @cached_property
    def phases(self) -> dict[str, str]:
        """What it decides in each phase, where that is not the default."""
        found = {}
        for phase in PHASES:
            links = self.recipe.chain(phase)
            if links and links != _PLAIN.chain(phase):
                found[phase] = " + ".join(map(repr, links))
        return found

    @cached_property
    def facts(self) -> tuple[Column, ...]:
        """What the environment has to say beyond its reward."""
        return facts_of({phase: self.recipe.chain(phase) for phase in PHASES})

    @property
    def trained(self) -> tuple[str, ...]:
        """The models that it trains."""
        links = [getattr(link, "model", "policy") for link in self.recipe.chain("loss")]
        return tuple(dict.fromkeys(links))

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that it asks or trains."""
        return tuple(dict.fromkeys([*self.trained, *self.recipe.models]))

    @property
    def differs(self) -> str:
        """The sentences of its file on paper, public code, and what is not here."""
        sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(self.text.split()))
        words = re.compile(r"\b(public code|published code|the paper|[Nn]ot here|not part of|proposals?|differs?)\b")
        return " ".join(sentence for sentence in sentences if words.search(sentence))

    def to_dict(self) -> dict[str, Any]:
        """The page as plain values."""
        return {
            "name": self.recipe.name,
            "source": self.recipe.source,
            "purpose": self.purpose,
            "phases": self.phases,
            "facts": [{"name": column.name, "level": column.level} for column in self.facts],
            "models": list(self.models),
            "trained": list(self.trained),
        }


def differences(one: Recipe, other: Recipe) -> list[tuple[str, str, str]]:
    """The places in which two recipes differ, with what stands there in each; a dash where there is nothing."""
    tables = [recipe.to_dict() for recipe in (one, other)]
    for phase in PHASES:  # a component alone is a chain of one, where the other recipe has a chain
        if any(isinstance(table.get(phase), list) for table in tables):
            for table in tables:
                table[phase] = [table[phase]] if isinstance(table.get(phase), dict) else table.get(phase, [])
    first, second = map(_flat, tables)
    places = [*first, *(place for place in second if place not in first)]
    found = [(place, first.get(place, "-"), second.get(place, "-")) for place in places]
    return [row for row in found if row[1] != row[2] and row[0] not in ("name", "source")]


def _flat(value: Any, place: str = "") -> dict[str, str]:
    """The leaves of a table by their places."""
    if isinstance(value, list):
        return {key: leaf for at, each in enumerate(value) for key, leaf in _flat(each, f"{place}[{at}]").items()}
    if isinstance(value, dict):
        inside = ((f"{place}.{key}" if place else key, each) for key, each in value.items())
        return {leaf_place: leaf for at, each in inside for leaf_place, leaf in _flat(each, at).items()}
    return {place: str(value)}
