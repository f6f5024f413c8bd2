"""Components: the typed, frozen pieces that a recipe is made of, one or more per phase.

A component is a frozen dataclass. Its fields are its options; they are checked when it is made. Its `needs` and `makes`
are the columns it reads and writes, so a recipe can be checked before anything runs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from agentrl_core.component.schedule import Schedule
from agentrl_core.exceptions import RecipeError

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

Level = Literal["draw", "step", "token"]
Column = tuple[Level, str]
"""A column of a batch: its level and its name."""

PHASES: dict[str, str] = {
    "select": "select",
    "rollout": "rollout",
    "reward": "reward",
    "admit": "select",
    "advantage": "advantage",
    "weight": "weight",
    "loss": "loss",
    "replay": "replay",
    "schedule": "schedule",
}
"""The phases of a recipe, in the order they run, and the package that holds the components of each."""

_NULL = "none"  # TOML has no null: an option that is None while its default is not is written as this word


@dataclass(frozen=True)
class Component:
    """Base of all components: checked options, a table form, and the columns it needs and makes.

    Subclasses are frozen dataclasses whose fields have defaults and one of the types `bool`, `int`, `float`, `str`,
    `Literal`, another component, or one of these `| None`. A subclass sets `phase` to the recipe phase it serves
    (or leaves it empty when it only lives inside another component) and overrides `check_options` for ranges.

    Raises:
        RecipeError: an option has the wrong type or is out of range; the message names component, option and value.

    Example:
        >>> from agentrl_core.reward import Tiers
        >>> Tiers(count=5).to_dict()
        {'component': 'Tiers', 'count': 5, 'column': 'score'}
    """

    phase: ClassVar[str] = ""
    scheduled: ClassVar[bool] = False
    """Whether numbers among the options may be a `Schedule`."""

    @property
    def needs(self) -> tuple[Column, ...]:
        """The columns this component reads, as (level, name)."""
        return ()

    @property
    def makes(self) -> tuple[Column, ...]:
        """The columns this component adds, as (level, name)."""
        return ()

    @classmethod
    def title(cls) -> str:
        """The name that error messages use: package and class, such as `loss.Policy`."""
        parts = cls.__module__.split(".")
        return f"{parts[1]}.{cls.__name__}" if parts[0] == "agentrl_core" and len(parts) > 1 else cls.__name__

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for option in fields(self):
            value = getattr(self, option.name)
            fitted, fits = _fit(value, hints[option.name])
            self.require(fits, option.name, f"give {_describe(hints[option.name])}")
            if isinstance(fitted, Schedule):
                self.require(self.scheduled, option.name, "its phase takes no Schedule, so give a number")
            object.__setattr__(self, option.name, fitted)
        self.check_options()
        for value in self.schedules.values():
            for iteration in (value.begin, value.begin + value.iterations):
                self.at(iteration)

    def at(self, iteration: int) -> Self:
        """The component as it is in an iteration: with a number for each of its options that is a `Schedule`."""
        schedules = self.schedules
        if not schedules:
            return self
        return dataclasses.replace(self, **{name: value.at(iteration) for name, value in schedules.items()})

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The options that are a `Schedule`, by name."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Schedule)}

    def check_options(self) -> None:
        """Check ranges and combinations of options with `require`. The types are already right."""

    def require(self, condition: bool, option: str, remedy: str) -> None:  # noqa: FBT001 - as in assert
        """Raise a `RecipeError` about `option` unless `condition` holds; `remedy` says what to do."""
        if not condition:
            value = getattr(self, option)
            raise RecipeError(f"{self.title()}: option {option}={value!r} is not possible; {remedy}")

    def to_dict(self) -> dict[str, Any]:
        """The component as a plain table: its class name under `component`, then its options.

        Options that are None are left out, or written as `"none"` where the default is something else.
        """
        table: dict[str, Any] = {"component": type(self).__name__}
        for option in fields(self):
            value = getattr(self, option.name)
            if value is None:
                if option.default is not None:
                    table[option.name] = _NULL
            else:
                table[option.name] = value.to_dict() if isinstance(value, (Component, Schedule)) else value
        return table

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """Make a component of exactly this class from the table that `to_dict` gives.

        Raises:
            RecipeError: an option is unknown, missing, of the wrong type or out of range.
        """
        hints = typing.get_type_hints(cls)
        options = {option.name: option for option in fields(cls)}
        package = cls.__module__.rpartition(".")[0] or cls.__module__
        values: dict[str, Any] = {}
        for name, value in table.items():
            if name == "component":
                continue
            if name not in options:
                known = ", ".join(options) or "none"
                raise RecipeError(f"{cls.title()}: option {name!r} is unknown; its options are: {known}")
            if isinstance(value, Mapping) and "component" not in value and _fit(0.0, hints[name])[1]:
                value = _schedule(cls, name, value)  # noqa: PLW2901 - the table becomes what it describes
            elif isinstance(value, Mapping):
                value = find_component(package, value)  # noqa: PLW2901
            elif value == _NULL and _fit(None, hints[name])[1] and not _fit(_NULL, hints[name])[1]:
                value = None  # noqa: PLW2901
            values[name] = value
        missing = [
            name
            for name, option in options.items()
            if name not in values and option.default is MISSING and option.default_factory is MISSING
        ]
        if missing:
            raise RecipeError(f"{cls.title()}: option {missing[0]!r} is missing; add it")
        return cls(**values)


def _in_iteration(run: Callable[..., Any]) -> Callable[..., Any]:
    """The method, run by the component as it is in the iteration of the batch, its first argument."""

    @functools.wraps(run)
    def resolved(component: BatchComponent, batch: Batch, *others: Any) -> Any:
        if component.schedules:
            iterations = batch.column("iteration", "draw")
            component = component.at(int(iterations.max()) if len(iterations) else 0)
        return run(component, batch, *others)

    return resolved


@dataclass(frozen=True)
class BatchComponent(Component, ABC):
    """A component that reads columns of a batch and returns the batch with new columns: reward, advantage, weight.

    A number among its options may be a `Schedule`: the component then runs with the number of the batch's iteration.
    """

    scheduled: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__call__", "advance"):
            if name in vars(cls):
                setattr(cls, name, _in_iteration(vars(cls)[name]))

    @abstractmethod
    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns of `makes` added. `batch` itself stays as it is."""


@dataclass(frozen=True)
class StatefulComponent(BatchComponent, ABC):
    """A component that remembers from batch to batch, and is pure all the same: its state goes in and comes out.

    The state is a table of plain values that JSON can hold (numbers, strings, lists, tables). `Batch.state` carries it,
    `Collector.update` commits it with the store's, and after a restart the next batch carries it again.
    """

    @abstractmethod
    def initial_state(self) -> dict[str, Any]:
        """The state before the first batch."""

    @abstractmethod
    def advance(self, batch: Batch, state: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Return `batch` with the columns of `makes` added, and the next state. Both arguments stay as they are."""

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns of `makes` added, and its state moved on."""
        name = f"{self.phase}.{type(self).__name__}"
        state = batch.state.get(name)
        batch, state = self.advance(batch, self.initial_state() if state is None else state)
        return batch.with_state({**batch.state, name: state})


def _schedule(kind: type[Component], name: str, table: Mapping[str, Any]) -> Schedule:
    try:
        return Schedule(**table)
    except TypeError:
        known = ", ".join(option.name for option in fields(Schedule))
        raise RecipeError(
            f"{kind.title()}: option {name}={dict(table)!r} is no Schedule; its keys are: {known}"
        ) from None


def find_component(package: str, table: Mapping[str, Any]) -> Component:
    """Make the component that `table` describes, looked up by class name in the phase package `package`.

    Args:
        package: import name of the package, such as `agentrl_core.loss`.
        table: what `Component.to_dict` gave.

    Raises:
        RecipeError: there is no such package or class, or its options do not fit.
    """
    short = package.removeprefix("agentrl_core.")
    name = table.get("component")
    if not isinstance(name, str):
        raise RecipeError(f'{short}: the table needs a line component = "ClassName"; it has component={name!r}')
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise RecipeError(f"{short}: this phase has no components; remove it from the recipe") from None
    known: dict[str, type[Component]] = {
        key: kind
        for key in module.__all__
        if isinstance(kind := getattr(module, key), type)
        and issubclass(kind, Component)
        and not inspect.isabstract(kind)
    }
    if name not in known:
        raise RecipeError(f"{short}: there is no component {name!r}; use one of: {', '.join(sorted(known))}")
    return known[name].from_dict(table)


def _fit(value: object, hint: Any) -> tuple[object, bool]:
    """The value as `hint` wants it (an int where a float is asked becomes one), and whether it fits."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        for part in typing.get_args(hint):
            fitted, fits = _fit(value, part)
            if fits:
                return fitted, True
        return value, False
    if origin is Literal:
        return value, any(value == choice and type(value) is type(choice) for choice in typing.get_args(hint))
    if hint is float:
        if isinstance(value, Schedule):
            return value, True
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value), math.isfinite(value)
        return value, False
    if hint is int:
        return value, isinstance(value, int) and not isinstance(value, bool)
    return value, isinstance(value, hint)


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe(part) for part in typing.get_args(hint))
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and issubclass(hint, Component):
        return f"a {hint.title()}"
    names = {float: "a finite number", int: "a whole number", bool: "True or False", str: "a string"}
    return names.get(hint, f"a {hint}")
