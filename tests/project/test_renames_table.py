"""The table of renames is sound, and has every public name that no longer exists."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import typing
from pathlib import Path
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
    # Or a module from renaming a function of its name: `group.statistics`.
    moved = {**names.sections["names"], **names.sections["modules"]}
    shorter = {old.rpartition(".")[2] for old, new in moved.items() if old != new}
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
    """Return every public name and component before the renames: a path, or with a method, either with an argument."""
    text = unpack(tmp_path_factory.mktemp("names"), "public_names.txt").read_text(encoding="utf-8")
    assert len(text.splitlines()) > 9000
    assert text.count("\nagentrl_core.recipes.") > 500
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


def test_every_module_of_before_is_importable_or_in_the_table(names: Renames, tmp_path: Path) -> None:
    modules = unpack(tmp_path, "modules.txt").read_text(encoding="utf-8").splitlines()
    assert len(modules) > 500
    lost = [each for each in modules if importlib.util.find_spec(names.module(each)) is None]
    assert not lost, f"{len(lost)} modules neither exist nor are in renames.toml: {lost}"


def test_an_option_that_was_dropped_is_removed(names: Renames) -> None:
    options = names.sections["options"]
    dropped = [key for key, new in options.items() if "=" in key and not new]
    assert dropped
    assert all(is_removed(options[key.partition("=")[0]]) for key in dropped)


def test_each_list_of_the_table_is_a_tuple_now_and_has_its_old_place(names: Renames) -> None:
    table = Table.of(names)
    assert names.sections["lists"]
    for key, form in names.sections["lists"].items():
        owner, _, option = key.rpartition(".")
        hint = typing.get_type_hints(resolved(names.path(owner)))[option]
        assert "tuple" in str(hint), key
        assert form in ("|", "list", "list+", "list="), key
        assert option in table.order(owner) or option in table.order(table.old(names.path(owner))), key
