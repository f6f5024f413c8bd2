"""The table of old and new names, with types: the class of each call and attribute."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentrl_core.renames import Renames, by_end, longest

TYPES = Path(__file__).with_name("types.toml")
PACKAGE = "agentrl_core"


class Table:
    """Look-ups by old paths, along the bases of a class.

    Args:
        renames: old and new names.
        types: class by class, method or attribute, of the package before the names changed.
        bases: base of each class.
    """

    def __init__(self, renames: Renames, types: Mapping[str, str], bases: Mapping[str, str]) -> None:
        self.renames = renames
        self._types, self._bases = types, bases
        sections = renames.sections
        self._old = {new: old for old, new in sections["names"].items()}
        self._members = {**sections["options"], **sections["methods"]}
        self._arguments = {**sections["options"], **sections["arguments"]}
        self._by_end = {
            "members": by_end(self._members, 2),
            "arguments 1": by_end(self._arguments, 2),
            "arguments 2": by_end(self._arguments, 3),
            "types 1": by_end(types, 1),
            "types 2": by_end(types, 2),
            "types 3": by_end(types, 3),
            "bases": by_end(bases, 1),
        }

    @classmethod
    def of(cls, renames: Renames, types: Path = TYPES) -> Table:
        """Return the table with the types of the package."""
        tables = tomllib.loads(types.read_text(encoding="utf-8"))
        return cls(renames, tables["types"], tables["bases"])

    def old(self, path: str) -> str:
        """Return the old path of a class that has its new path already."""
        return self._old.get(path, path)

    def member(self, owner: str, name: str) -> str | None:
        """Return the new name of a method, attribute or option of a class; None if it has not changed."""
        for base in self._line(owner):
            key = longest(self._by_end["members"], f"{base}.{name}", 2)
            if key is not None:
                return self._members[key]
        return None

    def anywhere(self, name: str) -> str | None:
        """Return the new name of a method that no other package has."""
        return self._members.get(f"*.{name}")

    def argument(self, owner: str, method: str, name: str) -> str | None:
        """Return the new name of an argument: of the class or function `owner`, or of its method."""
        for base in self._line(owner):
            path, end = (f"{base}.{method}.{name}", 2) if method else (f"{base}.{name}", 1)
            key = longest(self._by_end[f"arguments {end}"], path, end + 1)
            if key is not None:
                return self._arguments[key]
        return None

    def option(self, owner: str, name: str) -> str | None:
        """Return the new name of an option of a component."""
        options = self.renames.sections["options"]
        keys = (longest(self._by_end["members"], f"{base}.{name}", 2) for base in self._line(owner))
        return next((options[key] for key in keys if key in options), None)

    def word(self, owner: str, option: str, value: str) -> str | None:
        """Return the new form of an option's value, if its values are words."""
        options = self.renames.sections["options"]
        return next((new for base in self._line(owner) if (new := options.get(f"{base}.{option}={value}"))), None)

    def returns(self, function: str) -> str | None:
        """Return the class of a function's result."""
        return self._type(function, 1)

    def gives(self, owner: str, member: str) -> str | None:
        """Return the class of a method's result or of an attribute."""
        types = (self._type(f"{base}.{member}", 2) for base in self._line(owner))
        return next((each for each in types if each), None)

    def takes(self, owner: str, method: str, argument: str) -> str | None:
        """Return the class of a method's argument."""
        types = (self._type(f"{base}.{method}.{argument}", 3) for base in self._line(owner))
        return next((each for each in types if each), None)

    def _type(self, path: str, end: int) -> str | None:
        key = longest(self._by_end[f"types {end}"], path, end)
        return None if key is None else self._types[key]

    def _line(self, owner: str) -> Iterator[str]:
        """Yield a class and its bases."""
        here: str | None = owner
        while here is not None:
            yield here
            key = longest(self._by_end["bases"], here, 1)
            here = None if key is None else self._bases[key]
