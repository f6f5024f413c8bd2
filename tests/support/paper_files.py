"""Read and check the paper files: a published method as data, made from its sources alone.

The README of `tests/recipes/papers` describes the format.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from arithmetic import Value, evaluate

FOLDER = Path(__file__).parents[1] / "recipes" / "papers"
KINDS = {"paper", "code", "notes", "abstract"}
"""Kinds of sources, strongest first: the paper's text, the authors' code, notes of others, the abstract alone."""
SITUATIONS = {
    "uneven group",
    "several turns",
    "tool tokens",
    "failed rollout",
    "unscored rollout",
    "group of one",
    "off-policy",
    "second iteration",
    "two optimizer steps",
}
"""Topics that the worked examples of a file have to cover, unless `silent` gives the reason."""
REQUIRED_HYPERPARAMETERS = {
    "steps_per_batch",
    "clip_low",
    "clip_high",
    "gamma",
    "lambda",
    "normalisation",
    "group_size",
    "kl",
    "temperature",
}
_READ = {"what": str, "where": str, "section": str, "quote": str}
_EQUATION = {"number": str, "name": str, "formula": str, "meaning": str, "second_hand": bool}
_MECHANISM = {"name": str, "sentence": str}
_EXAMPLE = {"name": str, "equations": list, "covers": list, "given": dict, "work": list, "expect": dict}
_FILE = {
    "system": str,
    "paper": str,
    "read": list,
    "equations": list,
    "mechanisms": list,
    "hyperparameters": dict,
    "models": dict,
    "numbers": list,
    "silent": dict,
    "contradictions": list,
}
_STATEMENT = re.compile(r"(?P<name>\w+) = (?P<expression>[^=]+?(?:[<>=]=[^=]+?)*)(?: = (?P<value>[^=]+))?")
LONGEST_QUOTE = 300


@dataclass(frozen=True)
class Example:
    """A worked example whose arithmetic is recomputed."""

    name: str
    equations: list[str]
    covers: set[str]
    given: dict[str, Any]
    values: dict[str, Value]
    """The given numbers, and the result of each line of `work`, by name."""
    expect: dict[str, Value]


@dataclass(frozen=True)
class Paper:
    """A paper file."""

    name: str
    table: dict[str, Any]
    examples: list[Example]

    @classmethod
    def read(cls, path: Path) -> Paper:
        """Read a file and check that it is complete and that its arithmetic is right.

        Raises:
            ValueError: the place in the file and the error.
        """
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        try:
            _check_table(table)
            return cls(path.stem, table, [_example(each) for each in table["numbers"]])
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from error


def _check_fields(where: str, table: Mapping[str, Any], fields: Mapping[str, type]) -> None:
    if missing := fields.keys() - table.keys():
        raise ValueError(f"{where}: {sorted(missing)} is missing")
    if unknown := table.keys() - fields.keys():
        raise ValueError(f"{where}: {sorted(unknown)} is not of the format")
    if wrong := [name for name, kind in fields.items() if not isinstance(table[name], kind)]:
        raise ValueError(f"{where}: {wrong} has the wrong type; see the README for the types")
    if empty := [name for name, kind in fields.items() if kind is str and not table[name].strip()]:
        raise ValueError(f"{where}: {empty} is empty")


def _check_known(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    if unknown := set(names) - set(known):
        raise ValueError(f"{where}: {sorted(unknown)} is not one of {sorted(known)}")


def _check_table(table: dict[str, Any]) -> None:
    _check_fields("file", {"silent": {}, "contradictions": [], **table}, _FILE)
    for part, fields in (("read", _READ), ("equations", _EQUATION), ("mechanisms", _MECHANISM), ("numbers", _EXAMPLE)):
        if not table[part]:
            raise ValueError(f"{part} is empty")
        for place, entry in enumerate(table[part]):
            _check_fields(f"{part}[{place}]", entry, fields)
    for place, entry in enumerate(table["read"]):
        _check_known(f"read[{place}].what", [entry["what"]], KINDS)
        if len(entry["quote"]) > LONGEST_QUOTE:
            raise ValueError(f"read[{place}].quote has more than {LONGEST_QUOTE} characters; quote one sentence")
    numbers = [equation["number"] for equation in table["equations"]]
    if len(numbers) > len(set(numbers)):
        raise ValueError(f"equations: a number stands twice in {numbers}")
    if missing := REQUIRED_HYPERPARAMETERS - table["hyperparameters"].keys():
        raise ValueError(f"hyperparameters: {sorted(missing)} is missing; write 'not said' if the source is silent")
    _check_fields("models", table["models"], {"trained": list, "moved": list, "frozen": list})
    covered = set(table.get("silent", {}))
    for example in table["numbers"]:
        _check_known(f"numbers {example['name']!r}.equations", example["equations"], numbers)
        covered |= set(example["covers"])
    _check_known("covers and silent", covered, SITUATIONS)
    if missing := SITUATIONS - covered:
        raise ValueError(f"numbers: {sorted(missing)} has neither an example nor a reason in `silent`")
    exemplified = {number for example in table["numbers"] for number in example["equations"]}
    if missing := set(numbers) - exemplified:
        raise ValueError(f"numbers: no example uses the equations {sorted(missing)}")


def _example(entry: dict[str, Any]) -> Example:
    where = f"numbers {entry['name']!r}"
    values: dict[str, Value] = {}
    for name, given in entry["given"].items():
        if not isinstance(given, str):
            values[name] = np.array(given, np.float64)
    for line in entry["work"]:
        statement = _STATEMENT.fullmatch(line)
        if statement is None:
            raise ValueError(f"{where}: {line!r} is not `name = expression = value`")
        value = evaluate(statement["expression"], values)
        if statement["value"] is not None:
            _check_equal(f"{where}: {line!r}", value, evaluate(statement["value"], values))
        values[statement["name"]] = value
    expect = {}
    for name, expected in entry["expect"].items():
        expect[name] = evaluate(expected, values) if isinstance(expected, str) else np.array(expected, np.float64)
    if not expect:
        raise ValueError(f"{where}: expect is empty")
    return Example(entry["name"], entry["equations"], set(entry["covers"]), entry["given"], values, expect)


def _check_equal(where: str, computed: Value, expected: Value) -> None:
    if np.shape(computed) != np.shape(expected) or not np.allclose(
        computed, expected, rtol=1e-4, atol=2e-6, equal_nan=True
    ):
        raise ValueError(f"{where}: the expression is {np.asarray(computed).tolist()}")
