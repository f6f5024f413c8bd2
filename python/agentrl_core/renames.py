"""Translate names that earlier builds wrote in stored runs and recipes to current ones.

`renames.toml` has the table. `recipe` and `component` translate recipes, `state` the closing state of an iteration,
`place` the places of components, `metric` metrics. Names that are not in the table stay unchanged.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from agentrl_core._core import Table
from agentrl_core.exceptions import RecipeError

TABLE = Path(__file__).with_suffix(".toml")
SECTIONS = ("modules", "names", "methods", "arguments", "options", "lists", "metrics", "columns")

_PACKAGES = {"admit": "select", "hooks": "schedule", "actions": "schedule"}
"""Packages of phases with another name; `actions` is the old name of `hooks`."""
_SHARED = "agentrl_core.component"
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_PLACE = re.compile(r"(\w+)(\[\d+\]\.)(\w+)((?:\.\w+)?)(.*)", re.DOTALL)


class Renames:
    """A table of old and new names.

    Args:
        sections: the tables of the TOML document, by name.

    Example:
        >>> from agentrl_core.renames import Renames
        >>> names = Renames({
        ...     "names": {"agentrl_core.rollout.Window": "agentrl_core.rollout.ObservationWindow"},
        ...     "options": {"agentrl_core.rollout.Window.last": "turns"},
        ...     "metrics": {"said.": "tokens."},
        ... })
        >>> names.component("agentrl_core.rollout", {"component": "Window", "last": 3})
        {'component': 'ObservationWindow', 'turns': 3}
        >>> names.metric("said.dropped")
        'tokens.dropped'
    """

    def __init__(self, sections: Mapping[str, Mapping[str, str]]) -> None:
        self.sections = {name: dict(sections.get(name, {})) for name in SECTIONS}
        ends = {"names": 1, "options": 2, "lists": 2}
        self._paths = {name: by_end(self.sections[name], end) for name, end in ends.items()}

    @classmethod
    def read(cls, path: Path = TABLE) -> Renames:
        """Read the table of old and new names from a TOML file."""
        return cls(tomllib.loads(path.read_text(encoding="utf-8")))

    def metric(self, name: str) -> str:
        """Return the current name of a metric; a removed one keeps its name."""
        return _by_prefix(self.sections["metrics"], name)

    def column(self, name: str) -> str:
        """Return the current name of a column, or of a comma-joined list."""
        return ",".join(_by_prefix(self.sections["columns"], each) for each in name.split(","))

    def path(self, old: str) -> str:
        """Return the current path of a class or function; unchanged if it is not in the table."""
        key = longest(self._paths["names"], old, 1)
        module, _, _ = old.rpartition(".")
        if key is None:
            return self.module(old)
        new = self.sections["names"][key]
        if not is_removed(new) and key != old and key.rpartition(".")[0] == new.rpartition(".")[0]:
            return f"{self.module(module)}.{new.rpartition('.')[2]}"
        return new

    def module(self, old: str) -> str:
        """Return the current path of a module, or of a name in one."""
        modules, names, prefix = self.sections["modules"], self.sections["names"], old
        while prefix:
            new = modules.get(prefix) or names.get(prefix, "")
            if new and not new.startswith(f"{prefix}."):  # otherwise a function with the name of its module
                return new if is_removed(new) else new + old[len(prefix) :]
            prefix = prefix.rpartition(".")[0]
        return old

    def option(self, owner: str, name: str) -> str:
        """Return the current name of an option, by the old path of its class."""
        key = longest(self._paths["options"], f"{owner}.{name}", 2)
        return name if key is None else self.sections["options"][key]

    def list_form(self, owner: str, name: str) -> str | None:
        """Return how earlier builds joined the items of an option to one text, for `items`; None if they did not."""
        key = longest(self._paths["lists"], f"{owner}.{name}", 2)
        return None if key is None else self.sections["lists"][key]

    def component(self, package: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """Translate the table of a component and of its inner components.

        Args:
            package: import name of the phase's package, for classes without a module.
            table: written by an earlier build.

        Raises:
            RecipeError: a component or an option was removed.
        """
        name = table.get("component")
        owner, new = "agentrl_core.Schedule", name
        if isinstance(name, str):
            owner, new = self._class(package, name)
            _refuse(f"component {name!r}", new)
        translated: dict[str, Any] = {}
        for option, value in table.items():
            if option == "component":
                translated[option] = new
                continue
            new_option = self.option(owner, option)
            if new_option != option and is_removed(new_option):
                if self._may_be_dropped(owner, option, value):
                    continue
                _refuse(f"option {option!r} of component {name!r}", new_option)
            form = self.list_form(owner, option)
            if form is not None and isinstance(value, str):
                translated[new_option] = items(value, form, are_texts=table.get("by") == "domain")
            else:
                translated[new_option] = self._value(package, f"{owner}.{option}", value)
        return translated

    def recipe(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a recipe in its table form, component by component.

        Raises:
            RecipeError: a component or an option was removed.
        """
        translated: dict[str, Any] = {}
        for key, value in table.items():
            new_key = self.option("agentrl_core.Recipe", key)
            if new_key != key:
                _refuse(f"option {key!r} of a recipe", new_key)
            translated[new_key] = self._value(_package(key), f"agentrl_core.Recipe.{key}", value)
        return translated

    def place(self, old: str) -> str:
        """Translate the place of a component or option, such as `loss[0].Policy.clip`; other texts stay unchanged."""
        match = _PLACE.fullmatch(old)
        if match is None:
            return old
        phase, number, name, option, rest = match.groups()
        owner, new = self._class(_package(phase), name)
        new_phase = self.option("agentrl_core.Recipe", phase)
        new_option = self.option(owner, option[1:]) if option else ""
        if is_removed(new_phase) or is_removed(new) or (is_removed(new_option) and option):
            return old
        return f"{new_phase}{number}{new.rpartition(':')[2]}{'.' if option else ''}{new_option}{rest}"

    def places(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Translate the places among the keys of a table and of its nested tables."""
        return {
            self.place(name): self.places(value) if isinstance(value, Mapping) and "[" not in name else value
            for name, value in table.items()
        }

    def measured(self, rows: Table) -> Table:
        """Translate the names in the rows of a table of metrics."""
        return rows.with_texts("name", [self.metric(name) for name in rows.column("name")])

    def state(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Translate the closing state of an iteration: metrics, places of components and recipe."""
        translated = dict(table)
        if isinstance(translated.get("components"), Mapping):
            translated["components"] = self.places(translated["components"])
        if isinstance(translated.get("metrics"), Mapping):
            translated["metrics"] = self._measured(translated["metrics"])
        run = translated.get("run")
        if isinstance(run, Mapping) and isinstance(run.get("recipe"), Mapping):
            with suppress(RecipeError):  # creating the recipe refuses removed components
                translated["run"] = {**run, "recipe": self.recipe(run["recipe"])}
        return translated

    def _class(self, package: str, name: str) -> tuple[str, str]:
        """Return the old path of a component's class, and its current name in a table."""
        home, colon, short = name.rpartition(":")
        if colon:
            old = f"{home}.{short}"
            new = self.path(old) if home.partition(".")[0] == "agentrl_core" else old
            if new == old:  # a class inside a function keeps its whole name
                return old, name
            return old, new if is_removed(new) else f"{new.rpartition('.')[0]}:{new.rpartition('.')[2]}"
        old = next((path for each in (package, _SHARED) if self._knows(path := f"{each}.{name}")), f"{package}.{name}")
        new = self.sections["names"].get(old, old)
        if is_removed(new) or new == old:
            return old, new if is_removed(new) else name
        module, _, last = new.rpartition(".")
        return old, last if module in (package, _SHARED) else f"{module}:{last}"

    def _may_be_dropped(self, owner: str, name: str, value: Any) -> bool:
        """Return whether a removed option has the value that it had by default."""
        key = longest(self._paths["options"], f"{owner}.{name}", 2)
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return self.sections["options"].get(f"{key}={text}") == ""

    def _knows(self, path: str) -> bool:
        return path in self.sections["names"] or any(key.startswith(f"{path}.") for key in self.sections["options"])

    def _value(self, package: str, option: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.component(package, value)
        if isinstance(value, (list, tuple)):
            return [self._value(package, option, each) for each in value]
        if not isinstance(value, str):
            return value
        if (word := self.sections["options"].get(f"{option}={value}")) is not None:
            return word
        metric = self.metric(value)
        is_metric = option.endswith(".metric") or "." in value  # a word without a dot may be anything
        if is_metric and metric != value:
            return metric
        return self.column(value) if "." in value else value

    def _measured(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a table of metrics with nested tables, whose names are joined by dots."""
        translated: dict[str, Any] = {}
        for keys, value in _leaves(metrics):
            name = ".".join(keys)
            new = self.metric(name)
            *outer, last = keys if new == name else new.split(".") if len(keys) > 1 else [new]
            inside = translated
            for key in outer:
                inside = inside.setdefault(key, {})
            inside[last] = value
        return translated


def is_removed(new: str) -> bool:
    """Return whether a value of the table marks a removed name."""
    return not new or new == "removed" or new.startswith("removed:")


def hint(new: str) -> str:
    """Return the advice for a removed name, or an empty text."""
    return new.removeprefix("removed").removeprefix(":").strip()


@cache
def table() -> Renames:
    """Return the old and new names in this package's `renames.toml`."""
    return Renames.read()


def longest(keys: Mapping[tuple[str, ...], tuple[str, ...]], path: str, end: int) -> str | None:
    """Return the longest key whose last `end` parts end a path and whose other parts occur before them in order."""
    parts = path.split(".")
    candidates = keys.get(tuple(parts[-end:]), ())
    return next((key for key in candidates if _covers(key.split(".")[:-end], parts[:-end])), None)


def by_end(table: Mapping[str, str], end: int) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the keys of a table by their last parts, longest first."""
    keys_by_end: dict[tuple[str, ...], tuple[str, ...]] = {}
    for key in sorted(table, key=len, reverse=True):
        last = tuple(key.split(".")[-end:])
        keys_by_end[last] = (*keys_by_end.get(last, ()), key)
    return keys_by_end


def _covers(key: list[str], path: list[str]) -> bool:
    rest = iter(path)
    return all(part in rest for part in key)


def _by_prefix(table: Mapping[str, str], name: str) -> str:
    """Return the new name by the longest matching key: the whole name, or a prefix that ends in a dot."""
    if not table:
        return name
    keys = [name, *(name[: place + 1] for place in reversed(range(len(name))) if name[place] == ".")]
    key = next((key for key in keys if key in table), None)
    if key is None or is_removed(table[key]):
        return name
    return table[key] + name[len(key) :]


def _leaves(metrics: Mapping[str, Any], outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*outer, name))
        else:
            yield (*outer, name), value


def items(text: str, form: str, *, are_texts: bool = False) -> list[Any]:
    """Return the items of a list that earlier builds wrote as one text.

    Args:
        text: the items, joined.
        form: `|`: texts with bars between; `list`: texts or numbers with commas between; `list+`: the same, with
            pluses between the texts of an item; `list=`: pairs `name=number` with commas between.
        are_texts: whether items that look like numbers are texts, too.

    Example:
        >>> from agentrl_core.renames import items
        >>> items("3,8", "list"), items("math+logic,code", "list+"), items("math=2", "list=")
        ([3, 8], [['math', 'logic'], 'code'], [['math', 2]])
        >>> items("2024,2025", "list+", are_texts=True)    # names of domains
        ['2024', '2025']
    """
    if form == "|":
        return text.split("|")
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if form == "list=":
        pairs = [part.partition("=") for part in parts if part]
        return [[name.strip(), _number(share.strip())] for name, _, share in pairs]
    if not are_texts and not any(map(_is_text, parts)):
        return [_number(part) for part in parts]
    return [part.split("+") if form == "list+" and "+" in part else part for part in parts]


def _number(text: str) -> str | float:
    """Return a number that a text holds, or the text."""
    return text if _is_text(text) else int(text) if text.lstrip("+-").isdigit() else float(text)


def _is_text(text: str) -> bool:
    return _NUMBER.fullmatch(text) is None


def _package(phase: str) -> str:
    return f"agentrl_core.{_PACKAGES.get(phase, phase)}"


def _refuse(what: str, new: object) -> None:
    if isinstance(new, str) and is_removed(new):
        raise RecipeError(f"{what} was removed; {hint(new) or 'leave it out'}")
