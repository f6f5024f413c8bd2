"""Fields of requests: strict JSON, and a rule for the type and the range of each field."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from agentrl_core.exceptions import InvalidInputError

DEPTH = 128
"""Deepest nesting of lists and objects in a body."""

FLOAT32 = float(np.finfo(np.float32).max)
"""The largest number that a column of 32-bit floats holds."""


def parsed(raw: bytes, name: str) -> Any:
    """Parse JSON (RFC 8259): UTF-8 without lone surrogates, finite numbers, at most `DEPTH` levels.

    Args:
        raw: the bytes.
        name: name of the parsed text in error messages.

    Raises:
        InvalidInputError: the bytes are not such JSON. The message names the invalid field, if there is one.
    """
    odd: list[float] = []

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            odd.append(value)
        return value

    try:
        value = json.loads(raw.decode(), parse_constant=number, parse_float=number)
    except RecursionError:
        raise InvalidInputError(
            f"{name} is nested deeper than {DEPTH} levels; send less deep lists and objects"
        ) from None
    except ValueError as error:
        raise InvalidInputError(f"{name} is not JSON ({error}); send one JSON object in UTF-8") from None
    check_depth(value, name, DEPTH)
    if odd or b"\\ud" in raw or b"\\uD" in raw:
        check_portable(value)
    return value


def check_depth(value: object, name: str, most: int) -> None:
    """Refuse lists and objects that are nested deeper than `most`."""
    level, depth = [value], 0
    while level := [
        child
        for parent in level
        if isinstance(parent, (dict, list))
        for child in (parent.values() if isinstance(parent, dict) else parent)
        if isinstance(child, (dict, list))
    ]:
        depth += 1
        if depth >= most:
            raise InvalidInputError(f"{name} is nested deeper than {most} levels; send less deep lists and objects")


def check_portable(value: object, name: str = "") -> None:
    """Refuse numbers that are not finite and texts with a lone surrogate, which other programs' JSON cannot hold."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInputError(
                f"{name or 'the body'} is {shown(value)}, with a lone surrogate; give Unicode text"
            ) from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInputError(f"{name or 'the body'} is {value}; give a finite number")
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            check_portable(key, f"a key of {name or 'the body'}")
            check_portable(entry, f"{name}.{key:.60}" if name else f"{key:.60}")
    elif isinstance(value, (list, tuple)):
        for place, entry in enumerate(value):
            check_portable(entry, f"{name}[{place}]")


def shown(value: object) -> str:
    """Format a value for an error message, at most 60 characters of it."""
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python does not print integers of more than 4 300 digits
        return "a number of thousands of digits"


class InvalidField(Exception):  # noqa: N818 -- never leaves this module: `Rule.__call__` makes an InvalidInputError of it
    """Raised by `Rule.check` for an invalid value; `path` is its place in the body."""

    def __init__(self, value: object, needs: str) -> None:
        super().__init__(needs)
        self.path: list[str | int] = []
        self.value = value
        self.needs = needs


class Rule(ABC):
    """Rule of a field: the values that it may have."""

    kinds: ClassVar[tuple[type, ...]] = ()
    """Python types of the JSON values that the rule accepts."""

    def __call__(self, value: object, name: str = "") -> None:
        """Raise an error if a value does not follow the rule.

        Raises:
            InvalidInputError: the value is invalid; the message names the field, such as `messages[0].content`.
        """
        try:
            self.check(value)
        except InvalidField as error:
            place = name
            for part in reversed(error.path):
                place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
            is_missing = error.value is _MISSING
            problem = "is missing" if is_missing else f"is {shown(error.value)}"
            raise InvalidInputError(f"{place or 'the body'} {problem}; give {error.needs}") from None

    @abstractmethod
    def check(self, value: object) -> None:
        """Raise `InvalidField` if a value does not follow the rule."""

    @property
    @abstractmethod
    def needs(self) -> str:
        """Description of valid values for error messages, such as `a number from 0 to 2`."""


@dataclass(frozen=True)
class Number(Rule):
    """Rule of a field that is a finite number in a range.

    Args:
        least: the smallest valid number.
        most: the largest valid number.
        above: whether `least` itself is out of range.
        whole: whether it is an integer.
    """

    least: float
    most: float
    above: bool = False
    whole: bool = False
    kinds = (int, float)

    def check(self, value: object) -> None:
        """Raise `InvalidField` unless a value is a number (an integer if `whole`) in the range."""
        is_known = isinstance(value, Integral if self.whole else Real) and not isinstance(value, bool)
        if not is_known or not self.least <= value <= self.most or (self.above and value == self.least):  # type: ignore[operator]
            raise InvalidField(value, self.needs)

    @property
    def needs(self) -> str:
        """Description of the range for error messages, such as `a number from 0 to 2`."""
        kind, start = "a whole number" if self.whole else "a number", "above" if self.above else "from"
        return f"{kind} {start} {self.least} {'and up to' if self.above else 'to'} {self.most}"


def whole(least: int, most: int = 2**31 - 1) -> Number:
    """Return the rule of an integer in a range."""
    return Number(least, most, whole=True)


@dataclass(frozen=True)
class Text(Rule):
    """Rule of a field that is a text: its number of characters has a range, or it is one of a few texts."""

    least: int = 0
    most: int | None = None
    among: tuple[str, ...] = ()
    kinds = (str,)

    def check(self, value: object) -> None:
        """Raise `InvalidField` unless a value is a text of valid length and, if `among` is given, one of its texts."""
        is_known = isinstance(value, str) and len(value) >= self.least
        if not is_known or (self.most is not None and len(value) > self.most):  # type: ignore[arg-type]
            raise InvalidField(value, self.needs)
        if self.among and value not in self.among:
            raise InvalidField(value, self.needs)

    @property
    def needs(self) -> str:
        """Description of valid texts for error messages, such as `a text that is not empty`."""
        if self.among:
            return "one of " + ", ".join(repr(text) for text in self.among)
        size = f" of at most {self.most} characters" if self.most is not None else ""
        return ("a text that is not empty" if self.least else "a text") + size


@dataclass(frozen=True)
class Flag(Rule):
    """Rule of a field that is true or false."""

    kinds = (bool, np.bool_)

    def check(self, value: object) -> None:
        """Raise `InvalidField` unless a value is true or false."""
        if not isinstance(value, self.kinds):
            raise InvalidField(value, self.needs)

    @property
    def needs(self) -> str:
        """Description of valid values for error messages: `true or false`."""
        return "true or false"


@dataclass(frozen=True)
class List(Rule):
    """Rule of a field that is a list, whose entries follow one rule."""

    of: Rule
    least: int = 0
    kinds = (list,)

    def check(self, value: object) -> None:
        """Raise `InvalidField` unless a value is a list of at least `least` entries that all follow the rule `of`."""
        if not isinstance(value, list) or len(value) < self.least:
            raise InvalidField(value, self.needs)
        check = self.of.check
        place = 0
        try:
            for entry in value:
                check(entry)
                place += 1
        except InvalidField as error:
            error.path.append(place)
            raise

    @property
    def needs(self) -> str:
        """Description of valid lists for error messages, such as `a list that is not empty`."""
        return "a list that is not empty" if self.least else "a list"


@dataclass(frozen=True)
class Object(Rule):
    """Rule of an object, with a rule for each field that is read. A null field counts as missing.

    Args:
        fields: the rules.
        required: fields that cannot be left out.
    """

    fields: Mapping[str, Rule] = field(default_factory=dict)
    required: Sequence[str] = ()
    kinds = (dict,)

    def check(self, value: object) -> None:
        """Raise `InvalidField` unless a value is an object with all required fields, each valid by its rule."""
        if not isinstance(value, dict):
            raise InvalidField(value, self.needs)
        for name in self.required:
            if value.get(name) is None:
                error = InvalidField(_MISSING, self.fields[name].needs)
                error.path.append(name)
                raise error
        rules = self.fields
        name = ""
        try:
            for name, entry in value.items():
                rule = rules.get(name)
                if rule is not None and entry is not None:
                    rule.check(entry)
        except InvalidField as error:
            error.path.append(name)
            raise

    @property
    def needs(self) -> str:
        """Description of valid values for error messages: `an object`."""
        return "an object"


@dataclass(frozen=True)
class Either(Rule):
    """Rule of a field that follows one of several rules, by the type of its value; created by `either`."""

    rules: tuple[Rule, ...]
    of: Mapping[type, Rule]

    def check(self, value: object) -> None:
        """Raise `InvalidField` unless a rule accepts the value's type, and the value follows it."""
        rule = self.of.get(type(value))
        if rule is None:
            raise InvalidField(value, self.needs)
        rule.check(value)

    @property
    def needs(self) -> str:
        """Descriptions of all rules for error messages, joined by `or`."""
        return " or ".join(rule.needs for rule in self.rules)


def either(*rules: Rule) -> Either:
    """Return the rule of a field whose values may have several types."""
    return Either(rules, {kind: rule for rule in rules for kind in rule.kinds})


_MISSING = object()
