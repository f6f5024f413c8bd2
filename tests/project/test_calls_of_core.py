"""The package calls native methods with the parameters that the binary has.

The stub leaves out the methods that the public classes in `data/` declare, so mypy and stubtest do not check the calls.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import agentrl_core
from agentrl_core import _core

PACKAGE = Path(str(agentrl_core.__file__)).parent
CLASSES = ("Batch", "Forest", "RolloutLog", "Store")
HOLDERS = {"batch": "Batch", "part": "Batch", "stored": "Batch", "forest": "Forest", "store": "Store"}
"""Classes by the names of variables that hold their objects."""

TYPED = {"GroupTree", "SearchTree", "SumTree"}
"""Classes whose `self._core` mypy checks: the stub has all methods of `_core.SearchTree` and `_core.replay.SumTree`."""


class Use(NamedTuple):
    place: str
    owner: str
    name: str
    call: ast.Call | None


def owner_of(value: ast.expr, enclosing: str) -> str | None:
    """Return the native class of `_core.Batch`, `batch._core`, or `self._core` in a class."""
    match value:
        case ast.Attribute(value=ast.Name(id="_core"), attr=name) if name in CLASSES:
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr="_core") if enclosing in CLASSES:
            return enclosing
        case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr="_core"):
            return HOLDERS.get(name)
    return None


def unknown_in(source: str) -> Iterator[str]:
    """Yield the uses of `_core` of objects whose native class is not known, and variables that hold one."""
    for outer in ast.parse(source).body:
        enclosing = outer.name if isinstance(outer, ast.ClassDef) else ""
        for node in ast.walk(outer):
            match node:
                case ast.Attribute(value=ast.Attribute(attr="_core") as holder):
                    typed = ast.unparse(holder) == "self._core" and enclosing in TYPED
                    if not typed and owner_of(holder, enclosing) is None:
                        yield ast.unparse(node)
                case (
                    ast.Assign(targets=[ast.Name()], value=ast.Attribute(attr="_core"))
                    | ast.AnnAssign(target=ast.Name(), value=ast.Attribute(attr="_core"))
                    | ast.NamedExpr(value=ast.Attribute(attr="_core"))
                ):
                    yield ast.unparse(node)


def uses_in(path: Path) -> Iterator[Use]:
    """Yield the uses of native classes: their attributes, and calls of a class itself."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"(?<!agentrl)_core\.", text):  # most files
        return
    for outer in ast.parse(text).body:
        enclosing = outer.name if isinstance(outer, ast.ClassDef) else ""
        calls = {id(node.func): node for node in ast.walk(outer) if isinstance(node, ast.Call)}
        for node in ast.walk(outer):
            if not isinstance(node, ast.Attribute):
                continue
            place, call = f"{path.relative_to(PACKAGE)}:{node.lineno}", calls.get(id(node))
            if owner := owner_of(node.value, enclosing):
                yield Use(place, owner, node.attr, call)
            elif call and (owner := owner_of(node, enclosing)):
                yield Use(place, owner, "__new__", call)


def difference(use: Use) -> str | None:
    """Return how a use differs from the binary."""
    owner = getattr(_core, use.owner)
    if not hasattr(owner, use.name):
        return "does not exist"
    if use.call is None:
        return None
    signature = inspect.signature(owner if use.name == "__new__" else getattr(owner, use.name))
    parameters = [each for name, each in signature.parameters.items() if name != "self"]
    signature = signature.replace(parameters=parameters)
    words = [word.arg for word in use.call.keywords]
    named = {word: None for word in words if word is not None}
    try:
        if None in words:  # `**columns`, which are known only when it runs
            signature.bind_partial(*use.call.args, **named)
            return None
        given = signature.bind(*use.call.args, **named).arguments
    except TypeError as error:
        return str(error)
    left_out = [name for name in signature.parameters if name not in given]
    return f"leaves out {left_out}" if left_out else None


def test_calls_have_the_parameters_of_the_binary() -> None:
    uses = [use for path in sorted(PACKAGE.rglob("*.py")) for use in uses_in(path)]
    known = {(name, member) for name in CLASSES for member in vars(getattr(_core, name)) if member[:2] != "__"}
    assert known <= {(use.owner, use.name) for use in uses}, "a native method that no code uses, or used unseen"
    wrong = {f"{use.place} {use.owner}.{use.name}": found for use in uses if (found := difference(use))}
    assert not wrong


def test_the_class_of_every_holder_is_known() -> None:
    sources = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    unknown = {f"{path}: {use}" for path, source in sources.items() for use in unknown_in(source)}
    assert not unknown, "name the variable as in HOLDERS, or add it there"
    classes = {
        node.name for text in sources.values() for node in ast.parse(text).body if isinstance(node, ast.ClassDef)
    }
    assert classes >= TYPED


@pytest.mark.parametrize(
    "source", ["other._core.rows()", "native = batch._core", "class Other:\n    x = self._core.rows"]
)
def test_a_holder_of_unknown_class_is_found(source: str) -> None:
    assert list(unknown_in(source))
    assert not list(unknown_in("batch._core.rows()"))
