"""The page of a recipe, for the terminal and the catalogue."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentrl_core import recipes
from agentrl_core.cli.train import tables_of
from agentrl_core.component import Column, Component
from agentrl_core.component.component import PHASES, ForeignComponentError, find_component, only_own_components
from agentrl_core.component.requirements import required_facts
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe

_PLAIN = Recipe(name="plain")
_SECTION = r"^{name}:\n((?:[ ]{{4}}.*(?:\n|\Z)|\n)+)"
_NUMBER = r"(?:[A-Z]?\d[\w.]*|[A-Z])"
_EQUATION = re.compile(rf"({_NUMBER}(?:(?:, | and ){_NUMBER})*), (.+?): (.+)")
_LEFT_OUT = re.compile(r"left out[:,] (.+)")


@dataclass(frozen=True)
class Entry:
    """An entry of the section `Equations` or `Differs` of a recipe's file.

    Args:
        numbers: of the equations that it is about; empty in `Differs`.
        name: of the equation or the difference.
        text: how the recipe computes it, or how it differs.
    """

    numbers: tuple[str, ...]
    name: str
    text: str

    @property
    def left_out(self) -> str:
        """Return why the recipe leaves out an equation; empty if it does not."""
        found = _LEFT_OUT.match(self.text)
        return found[1] if found else ""


@dataclass(frozen=True)
class RecipePage:
    """A recipe with the documentation of its file.

    Args:
        recipe: the recipe, without the components of `foreign`.
        text: the docstring of its file; empty for a user's recipe.
        foreign: each phase with a component of another package, with all its components in order: those of
            agentrl_core, and the others as tables.
    """

    recipe: Recipe
    text: str = ""
    foreign: Mapping[str, list[Component | dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> RecipePage:
        """Return the page of a recipe in `recipes/`."""
        recipe = recipes.get(name)
        return cls(recipe, inspect.getdoc(importlib.import_module(f"agentrl_core.recipes.{name}")) or "")

    @classmethod
    def of_file(cls, name: str) -> RecipePage:
        """Return the page of a TOML file; components of other packages are not imported but shown by name.

        Raises:
            RecipeError: the file cannot be read or is not a recipe.
        """
        table = tables_of(name)[0]
        own, foreign = dict(table), {}
        with only_own_components():
            for phase in PHASES.keys() & table.keys():
                links = table[phase] if isinstance(table[phase], list) else [table[phase]]
                known = [link for link in links if not _is_foreign(phase, link)]
                if len(known) == len(links):
                    continue
                foreign[phase] = [
                    find_component(f"agentrl_core.{PHASES[phase]}", link) if link in known else link for link in links
                ]
                own[phase] = known
            recipe = Recipe.from_dict({key: value for key, value in own.items() if key not in foreign or value})
        return cls(recipe, foreign=foreign)

    @property
    def others(self) -> list[str]:
        """Return the components of other packages, by name only."""
        links = (link for links in self.foreign.values() for link in links if isinstance(link, dict))
        return [str(link["component"]) for link in links]

    @cached_property
    def table(self) -> dict[str, Any]:
        """Return the recipe as a table, with components of other packages unchanged from the file."""
        table = self.recipe.to_dict()
        for phase, links in self.foreign.items():
            tables = [link.to_dict() if isinstance(link, Component) else link for link in links]
            table[phase] = tables if len(tables) > 1 else tables[0]
        return table

    @property
    def purpose(self) -> str:
        """Return the recipe's purpose, the first paragraph of its file."""
        return " ".join(self.text.partition("\n\n")[0].split())

    @cached_property
    def phases(self) -> dict[str, str]:
        """Return for each phase the recipe's components that differ from the default."""
        changes = {}
        for phase in PHASES:
            links = self.foreign.get(phase) or self.recipe.chain(phase)
            if links and links != _PLAIN.chain(phase):
                changes[phase] = " + ".join(_shown(link) for link in links)
        return changes

    @cached_property
    def facts(self) -> tuple[Column, ...]:
        """Return the facts that the recipe needs from the environment."""
        return required_facts({phase: self.recipe.chain(phase) for phase in PHASES})

    @property
    def trained(self) -> tuple[str, ...]:
        """Return the models that the recipe trains."""
        links = [getattr(link, "model", "policy") for link in self.recipe.chain("loss")]
        return tuple(dict.fromkeys(links))

    @property
    def models(self) -> tuple[str, ...]:
        """Return all models that the recipe queries or trains."""
        return tuple(dict.fromkeys([*self.trained, *self.recipe.models]))

    def section(self, name: str) -> str:
        """Return a section of the recipe's file, such as `Equations`; empty if there is none."""
        found = re.search(_SECTION.format(name=name), self.text, re.MULTILINE)
        return textwrap.dedent(found[1]).strip() if found else ""

    @property
    def prose(self) -> str:
        """Return the recipe's documentation after the purpose, without the sections `Equations` and `Differs`."""
        text = self.text.partition("\n\n")[2]
        for name in ("Equations", "Differs"):
            text = re.sub(_SECTION.format(name=name), "", text, flags=re.MULTILINE)
        return text.strip()

    @cached_property
    def equations(self) -> tuple[Entry, ...]:
        """Return the equations of the recipe's source, and how the recipe computes each.

        Raises:
            RecipeError: an entry is not `- NUMBER, name: text`.
        """
        entries = []
        for item in _items(self.section("Equations")):
            found = _EQUATION.fullmatch(item)
            if found is None:
                raise RecipeError(f"recipe {self.recipe.name!r}: {item!r} is not `- NUMBER, name: text`; rewrite it")
            entries.append(Entry(tuple(re.split(", | and ", found[1])), found[2], found[3]))
        return tuple(entries)

    @cached_property
    def differences(self) -> tuple[Entry, ...]:
        """Return where the recipe differs from its source."""
        return tuple(Entry((), *_named(item)) for item in _items(self.section("Differs")))

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Return the parts of its source that the recipe leaves out, with the reasons."""
        entries = [*self.equations, *self.differences]
        return tuple((", ".join([*each.numbers, each.name]), each.left_out) for each in entries if each.left_out)

    @property
    def differs(self) -> str:
        """Return the section `Differs`, or without one the sentences about differences from paper and public code."""
        if section := self.section("Differs"):
            return section
        sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(self.text.split()))
        words = re.compile(r"\b(public code|published code|the paper|[Nn]ot here|not part of|proposals?|differs?)\b")
        return " ".join(sentence for sentence in sentences if words.search(sentence))

    def to_dict(self) -> dict[str, Any]:
        """Return the page as a table of plain values."""
        return {
            "name": self.recipe.name,
            "source": self.recipe.source,
            "purpose": self.purpose,
            "phases": self.phases,
            "facts": [{"name": column.name, "level": column.level} for column in self.facts],
            "models": list(self.models),
            "trained": list(self.trained),
            "others": self.others,
            "left_out": dict(self.left_out),
        }


def _items(section: str) -> list[str]:
    return [" ".join(item.split()) for item in re.findall(r"^- (.+(?:\n[ ]+.+)*)", section, re.MULTILINE)]


def _named(item: str) -> tuple[str, str]:
    name, _, text = item.partition(": ")
    return name, text


def _is_foreign(phase: str, link: Any) -> bool:
    try:
        find_component(f"agentrl_core.{PHASES[phase]}", link if isinstance(link, dict) else {})
    except ForeignComponentError:
        return True
    except RecipeError:  # `Recipe.from_dict` reports this error, with the name of the recipe
        return False
    return False


def _shown(link: Component | dict[str, Any]) -> str:
    if isinstance(link, Component):
        return repr(link)
    options = ", ".join(f"{name}={value!r}" for name, value in link.items() if name != "component")
    return f"{link['component']}({options})"


def differences(one: RecipePage, other: RecipePage) -> list[tuple[str, str, str]]:
    """Return the places where two recipes differ, with both values; a dash means none."""
    tables = [dict(page.table) for page in (one, other)]
    for phase in PHASES:  # a single component compares as a chain of one
        if any(isinstance(table.get(phase), list) for table in tables):
            for table in tables:
                table[phase] = [table[phase]] if isinstance(table.get(phase), dict) else table.get(phase, [])
    first, second = map(_flat, tables)
    places = [*first, *(place for place in second if place not in first)]
    rows = [(place, first.get(place, "-"), second.get(place, "-")) for place in places]
    return [row for row in rows if row[1] != row[2] and row[0] not in ("name", "source")]


def _flat(value: Any, place: str = "") -> dict[str, str]:
    """Return the leaf values of nested tables, by their place."""
    if isinstance(value, list):
        return {key: leaf for at, each in enumerate(value) for key, leaf in _flat(each, f"{place}[{at}]").items()}
    if isinstance(value, dict):
        inside = ((f"{place}.{key}" if place else key, each) for key, each in value.items())
        return {leaf_place: leaf for at, each in inside for leaf_place, leaf in _flat(each, at).items()}
    return {place: str(value)}
