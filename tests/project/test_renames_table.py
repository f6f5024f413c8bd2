"""The table of renames is sound, and has every public name that no longer exists."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from typing import Any

import pytest
from before_renames import unpack

from agentrl_core.renames import Renames, is_removed
from renaming.table import Table


@pytest.fixture(scope="module")
def names() -> Renames:
    return Renames.read()


def test_no_new_name_is_an_old_one(names: Renames) -> None:
    assert names.sections["modules"]
    for section in ("modules", "names", "metrics", "columns"):
        table = names.sections[section]
        assert not {old: new for old, new in table.items() if new in table and table[new] != new}, section
    for section in ("methods", "arguments", "options"):
        table = names.sections[section]
        again = {old: new for old, new in table.items() if f"{old.rpartition('.')[0]}.{new}" in table}
        assert not again, section
    # A kept name stops a shorter key from renaming a longer path: `advantage.tree` from `tree`.
    shorter = {old.rpartition(".")[2] for old, new in names.sections["names"].items() if old != new}
    same = [old for table in names.sections.values() for old, new in table.items() if old == new]
    assert all(old in names.sections["names"] and old.rpartition(".")[2] in shorter for old in same), same


def test_every_new_name_exists(names: Renames) -> None:
    table = {**names.sections["modules"], **names.sections["names"]}
    new_names = {new for new in table.values() if not is_removed(new)}
    assert len(new_names) > 200
    missing = sorted(new for new in new_names if resolved(new) is MISSING)
    assert not missing, f"{len(missing)} names of renames.toml lead nowhere: {missing}"


def test_every_new_member_exists(names: Renames) -> None:
    missing = []
    for section in ("methods", "options"):
        for old, new in names.sections[section].items():
            owner, _, member = old.rpartition(".")
            if owner != "*" and not is_removed(new) and "=" not in member:
                home = resolved(names.path(owner))
                is_set = home is not MISSING and f"self.{new} = " in inspect.getsource(home)
                if not is_set and resolved(f"{names.path(owner)}.{new}") is MISSING:
                    missing.append(f"{old} = {new}")
    assert not missing, f"{len(missing)} members of renames.toml lead nowhere: {missing}"


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return every public name before the renames: a path, a path with a method, either with an argument."""
    text = unpack(tmp_path_factory.mktemp("names"), "public_names.txt").read_text(encoding="utf-8")
    assert len(text.splitlines()) > 8000
    return text.splitlines()


MISSING = object()


@functools.cache
def resolved(path: str) -> Any:
    """Return the object of a path, imported as far as possible; MISSING if there is none."""
    outer_path, _, name = path.rpartition(".")
    if not outer_path:
        return importlib.import_module(path)
    outer = resolved(outer_path)
    value = getattr(outer, name, MISSING)
    if value is MISSING and inspect.ismodule(outer):
        with contextlib.suppress(ImportError):
            return importlib.import_module(path)
    if value is MISSING and inspect.isclass(outer):  # an attribute that instances have
        return any(name in vars(each).get("__annotations__", {}) for each in outer.__mro__) or MISSING
    return value


@functools.cache
def parameters_of(function: Any) -> Any:
    return inspect.signature(function).parameters


@functools.cache
def of_today(path: str, table: Table) -> str | None:
    """Return today's path for an old one; None if it was removed."""
    if resolved(path) is not MISSING:
        return path
    owner, _, member = path.rpartition(".")
    renamed = table.member(owner, member)
    if renamed is None and (new := table.renames.path(path)) != path:
        return None if is_removed(new) else new
    home, new = of_today(owner, table), renamed
    if home is None or (new is not None and is_removed(new)):
        return None
    return f"{home}.{new or member}"


def test_every_public_name_of_before_works_or_is_in_the_table(names: Renames, public: list[str]) -> None:
    table, lost = Table.of(names), []
    for each in public:
        path, _, argument = each.removesuffix(")").partition("(")
        new = of_today(path, table)
        if new is None:
            continue
        value = resolved(new)
        if value is MISSING:
            lost.append(each)
        elif argument and callable(value):
            parameters = parameters_of(value)
            owner, _, method = path.rpartition(".")
            is_method = owner.rpartition(".")[2][:1].isupper()
            new_argument = table.argument(owner, method, argument) if is_method else table.argument(path, "", argument)
            removed = new_argument is not None and is_removed(new_argument)
            takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
            if not (removed or takes_all or argument in parameters or new_argument in parameters):
                lost.append(each)
    assert not lost, f"{len(lost)} names neither work nor are in renames.toml: {lost}"
