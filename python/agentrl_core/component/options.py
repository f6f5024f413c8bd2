"""Declare options of components: a default, the range of a number, the level of a column name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

from agentrl_core.component.column import LEVELS, Column, Level, key_columns, needed
from agentrl_core.component.schedule import Schedule
from agentrl_core.exceptions import RecipeError

_METADATA = "agentrl_core"


@dataclass(frozen=True)
class Range:
    """Range of the numbers that an option accepts."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a number lies in the range."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def is_empty(self) -> bool:
        """Return whether no number lies in the range."""
        least, most = _tightest(self.at_least, self.above, max), _tightest(self.at_most, self.below, min)
        if least is None or most is None:
            return False
        return least > most or (least == most and not self.holds(least))

    def __str__(self) -> str:
        bounds = {"of at least": self.at_least, "above": self.above, "of at most": self.at_most, "below": self.below}
        parts = [f"{words} {_short(bound)}" for words, bound in bounds.items() if bound is not None]
        return "a number " + " and ".join(parts)


@dataclass(frozen=True)
class Filled:
    """Rule for a text or a tuple that must not be empty."""


@dataclass(frozen=True)
class ColumnName:
    """Rule for the name of a column, or a comma-joined list of names, that the component reads."""

    level: Level | Literal["level"]
    model: str | None
    optional: bool
    default: Any

    def columns(self, value: str | None, level: Level) -> tuple[Column, ...]:
        """Return the columns named in an option's value; `level` is the level of the component."""
        names = key_columns(value or "")
        level = level if self.level == "level" else self.level
        if self.model is not None and value == self.default:
            return tuple(Column(level, name, self.model) for name in names)
        return needed(level, *names)


Rule = Range | Filled | ColumnName


def option(
    default: Any = MISSING,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    filled: bool = False,
) -> Any:
    """Declare an option with a range, checked when the component is created.

    Args:
        default: its value if none is given; without a default it has to be given.
        at_least: the smallest number.
        above: every number is larger.
        at_most: the largest number.
        below: every number is smaller.
        filled: for a text or a tuple: it may not be empty.

    Raises:
        RecipeError: the range is empty, `default` lies outside, or the declaration mixes texts and numbers.

    Example:
        >>> from dataclasses import dataclass
        >>> from agentrl_core.component import Component, option
        >>> @dataclass(frozen=True)
        ... class Half(Component):
        ...     share: float = option(0.5, at_least=0, at_most=1)
        >>> Half(share=2.0)
        Traceback (most recent call last):
            ...
        agentrl_core.exceptions.RecipeError: ...Half: option share=2.0 is not possible; give a number of at least 0 ...
    """
    rule = Range(at_least, above, at_most, below)
    bounds = {name: bound for name, bound in vars(rule).items() if bound is not None}
    for name, bound in bounds.items():
        if not _is_number(bound):
            raise RecipeError(f"option({name}={bound!r}): a bound must be a number; give a number, or None")
    if filled:
        if bounds:
            raise RecipeError(
                f"option(filled=True, {_listed(bounds)}): a text has no range; leave out filled or the bounds"
            )
        if default is not MISSING and not (isinstance(default, (str, tuple)) and default):
            raise RecipeError(
                f"option({default!r:.60}, filled=True): filled needs a text or tuple; give one that is not empty"
            )
        return field(default=default, metadata={_METADATA: Filled()})
    if rule.is_empty():
        raise RecipeError(
            f"option({_listed(bounds)}): no number lies between these bounds; give a lower bound below the upper one"
        )
    numbers = (default.start, default.end) if isinstance(default, Schedule) else (default,)
    numbers = default if isinstance(default, tuple) else numbers
    free = not bounds or default is MISSING or default is None
    if not free and not all(_is_number(number) and rule.holds(number) for number in numbers):
        raise RecipeError(f"option({default!r}, {_listed(bounds)}): the default is out of range; give {rule}")
    return field(default=default, metadata={_METADATA: rule})


def column_name(
    default: Any = MISSING, *, level: Level | Literal["level"], model: str | None = None, optional: bool = False
) -> Any:
    """Declare an option that names a column, or a comma-joined list of columns. The component then needs them.

    Args:
        default: its value if the user gives none.
        level: the level of the column; `"level"`: the value of the component's option `level`.
        model: the model that computes the default column.
        optional: whether it may be empty. An empty text needs no column, like `batch` and `trained_tokens`.

    Raises:
        RecipeError: the level does not exist, or `default` is not a name.

    Example:
        >>> from dataclasses import dataclass
        >>> from agentrl_core.component import Component, column_name
        >>> @dataclass(frozen=True)
        ... class Reader(Component):
        ...     by: str = column_name("score", level="draw")
        >>> Reader(by="reward.format").needs
        (draw('reward.format'),)
    """
    levels = (*LEVELS, "level")
    if level not in levels:
        raise RecipeError(f"column_name: level is {level!r}; give one of {', '.join(map(repr, levels))}")
    if default is not MISSING and not isinstance(default, str):
        raise RecipeError(f"column_name: default is {default!r:.60}; give the name of a column as a text")
    if default == "" and not optional:
        raise RecipeError("column_name(''): the name is empty; name a column, or set optional=True")
    return field(default=default, metadata={_METADATA: ColumnName(level, model, optional, default)})


def declared(metadata: Mapping[str, Any]) -> Rule | None:
    """Return the rule that `option` or `column_name` stored in a field's metadata."""
    return metadata.get(_METADATA)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _tightest(one: float | None, other: float | None, choose: Callable[[float, float], float]) -> float | None:
    return other if one is None else one if other is None else choose(one, other)


def _listed(bounds: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={bound}" for name, bound in bounds.items())


def _short(bound: float) -> str:
    return str(int(bound)) if math.isfinite(bound) and bound == int(bound) else str(bound)
