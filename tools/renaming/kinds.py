"""Kinds of values that the names of a program refer to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from renaming.table import PACKAGE


@dataclass(frozen=True)
class At:
    """A module, class, function or constant, by its old path."""

    path: str
    inside: bool = True
    """Return whether it is a name of this package."""


@dataclass(frozen=True)
class Of:
    """An instance of a class of the package, by the class's old path."""

    owner: str


@dataclass(frozen=True)
class Member:
    """A method or attribute of an instance."""

    owner: str
    name: str


@dataclass(frozen=True)
class Many:
    """An iterable of values of a kind."""

    each: Any


@dataclass(frozen=True)
class Several:
    """A tuple."""

    parts: tuple[Any, ...]


@dataclass(eq=False)
class Own:
    """A class of the program itself."""

    bases: tuple[str, ...]
    """The package's classes that it derives from."""
    members: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnValue:
    """An instance of a class of the program."""

    of: Own


@dataclass(frozen=True)
class Function:
    """A function of the program, by the kind of its result."""

    returns: Any


@dataclass(frozen=True)
class Bound:
    """The kind of a name's value."""

    known: Any
    new: str = ""
    """Its new name after the import, if the name changes."""
    by: ast.stmt | None = None
    """The import."""


class Scope(dict[str, Bound]):
    """The names of a function or module, and of its enclosing scopes."""

    def __init__(self, outer: Scope | None = None) -> None:
        super().__init__()
        self.outer = outer

    def find(self, name: str) -> Bound | None:
        """Return the kind of a name, in this scope or an enclosing one."""
        return self[name] if name in self else self.outer.find(name) if self.outer is not None else None


def is_class(path: str) -> bool:
    """Return whether a path is that of a class, by its name."""
    name = path.rpartition(".")[2]
    return (path.startswith(f"{PACKAGE}.") and name[:1].isupper() and not name.isupper()) or name in (
        "KL",
        "MCP",
        "PID",
    )


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Return a program's own names: those that it binds or reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
