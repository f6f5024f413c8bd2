"""Rewrite old names in recipe files: find each key and text of a TOML document, and edit it in place."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agentrl_core.exceptions import RecipeError
from agentrl_core.renames import Renames

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""[ \t]*([A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*""")
_TEXT = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_PLAIN = re.compile(r"[^,\]}#\n]+")

Path = tuple[str | int, ...]


class Entry(NamedTuple):
    """A key of a document, and its position.

    Args:
        table: the keys of the tables around it.
        key: the key.
        begin: its first character.
        end: the one after its last.
        texts: the texts of its value, outside of tables in it: first character and the one after the last.
    """

    table: Path
    key: str
    begin: int
    end: int
    texts: list[tuple[int, int]]


def rewrite(source: str, renames: Renames) -> str:
    """Return the document with current names; the same text if it is not a recipe.

    Raises:
        RecipeError: it has a name that was removed, or a form that cannot be edited in place.
    """
    data = tomllib.loads(source)
    if not is_recipe(data):
        return source
    train = {"train": data.pop("train")} if "train" in data else {}
    renamed = renames.recipe(data)
    if renamed == data:
        return source
    edits: list[tuple[int, int, str]] = []
    for entry in entries(source):
        if entry.table[:1] == ("train",) or entry[:2] == ((), "train"):
            continue
        table = _inside(data, entry.table)
        new = _renamed(renames, entry.table, table, entry.key)
        key, value = next(iter(new.items()))
        if key != entry.key and entry.key in source[entry.begin : entry.end]:
            edits.append((entry.begin, entry.end, source[entry.begin : entry.end].replace(entry.key, key)))
        if isinstance(table[entry.key], str) and isinstance(value, list):  # a text of several items is a list now
            edits += [(begin, end, json.dumps(value, ensure_ascii=False)) for begin, end in entry.texts]
            continue
        olds, news = list(_texts(table[entry.key])), list(_texts(value))
        for (begin, end), old, text in zip(entry.texts, olds, news, strict=False):
            if old != text:
                edits.append((begin, end, source[begin:end].replace(old, text)))
    result = source
    for begin, end, text in sorted(set(edits), reverse=True):
        result = result[:begin] + text + result[end:]
    if tomllib.loads(result) != {**renamed, **train}:
        raise RecipeError("it cannot be edited in place; write Recipe.from_toml(...).to_toml() over it")
    return result


def is_recipe(data: Mapping[str, Any]) -> bool:
    """Return whether a document is a recipe: it has a name, and a table with a component."""
    tables = [each for value in data.values() for each in (value if isinstance(value, list) else [value])]
    return isinstance(data.get("name"), str) and any(isinstance(each, dict) and "component" in each for each in tables)


def _renamed(renames: Renames, path: Path, table: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the current key and value of an entry of a recipe's table."""
    if not path:
        return renames.recipe({key: table[key]})
    owner = {"component": table["component"]} if "component" in table and key != "component" else {}
    renamed = renames.recipe({str(path[0]): {**owner, key: table[key]}})
    new_table: dict[str, Any] = next(iter(renamed.values()))
    return {name: value for name, value in new_table.items() if name != "component" or key == "component"}


def _inside(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def _texts(value: Any) -> Iterator[str]:
    """Return the texts of a value, outside of tables in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def entries(source: str) -> Iterator[Entry]:
    """Return the keys of a TOML document that tomllib reads, each with its position."""
    scanner = _Scanner(source)
    counts: dict[Path, int] = {}
    here: Path = ()
    while (at := scanner.space()) < len(source):
        if source[at] != "[":
            yield from scanner.pair(here)
            continue
        many = source.startswith("[[", at)
        scanner.at += 2 if many else 1
        here = ()
        keys = scanner.keys()
        for place, (key, begin, end) in enumerate(keys):
            yield Entry(here, key, begin, end, [])
            here = (*here, key)
            if many and place == len(keys) - 1:
                counts[here] = counts.get(here, -1) + 1
            if here in counts:
                here = (*here, counts[here])
        scanner.at += 2 if many else 1


class _Scanner:
    def __init__(self, source: str) -> None:
        self.source, self.at = source, 0

    def space(self) -> int:
        found = _SPACE.match(self.source, self.at)
        self.at = found.end() if found else self.at
        return self.at

    def keys(self) -> list[tuple[str, int, int]]:
        keys = []
        while found := _KEY.match(self.source, self.at):
            self.at = found.end()
            keys.append((found[1].strip("\"'"), *found.span(1)))
            if not self.source.startswith(".", self.at):
                break
            self.at += 1
        return keys

    def pair(self, table: Path) -> Iterator[Entry]:
        *outer, (key, begin, end) = self.keys()
        for name, first, last in outer:
            yield Entry(table, name, first, last, [])
            table = (*table, name)
        self.at += 1  # the equals sign
        texts: list[tuple[int, int]] = []
        inner = list(self.value((*table, key), texts))
        yield Entry(table, key, begin, end, texts)
        yield from inner

    def value(self, here: Path, texts: list[tuple[int, int]]) -> Iterator[Entry]:
        self.space()
        source = self.source
        if found := _TEXT.match(source, self.at):
            texts.append(found.span())
            self.at = found.end()
        elif source[self.at] == "[":
            self.at += 1
            number = 0
            while source[self.space()] != "]":
                yield from self.value((*here, number), texts)
                number += 1
                self.space()
                self.at += source[self.at] == ","
            self.at += 1
        elif source[self.at] == "{":
            self.at += 1
            while source[self.space()] != "}":
                yield from self.pair(here)
                self.space()
                self.at += source[self.at] == ","
            self.at += 1
        elif found := _PLAIN.match(source, self.at):
            self.at = found.end()
