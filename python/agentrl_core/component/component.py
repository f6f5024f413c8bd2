"""Components: the typed, frozen pieces that a recipe is made of, one or more per phase.

A component is a frozen dataclass. Its fields are its options, checked when it is created. Its `needs` and `makes` are
the columns it reads and writes, so that a recipe is checked before anything runs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, Self

from agentrl_core import renames
from agentrl_core._util.json_text import is_unicode
from agentrl_core._util.near_names import near_names
from agentrl_core.component.column import Column
from agentrl_core.component.options import ColumnName, Filled, Range, Rule, declared
from agentrl_core.component.repr import component_repr
from agentrl_core.component.schedule import Changing, Schedule
from agentrl_core.exceptions import RecipeError

PHASES: dict[str, str] = {
    "select": "select",
    "rollout": "rollout",
    "reward": "reward",
    "admit": "select",
    "advantage": "advantage",
    "weight": "weight",
    "loss": "loss",
    "replay": "replay",
    "hooks": "schedule",
}
"""Phases of a recipe, each with the package of its components. Those before `replay` run in this order."""

_COMMON = "agentrl_core.component"  # components that components of any phase may contain
_OWN = {"component", "recipes", *PHASES.values()}  # packages of the components of agentrl_core
_only_own: ContextVar[bool] = ContextVar("only_own_components", default=False)
_hints = typing.get_type_hints
_NULL = "none"  # TOML has no null: an option that is None, with another default, is written as this word


@dataclass(frozen=True, repr=False)
class Component:
    """Base class of all components, the parts of a recipe.

    Subclasses are frozen dataclasses. Their fields are their options, of one of the types `bool`, `int`, `float`,
    `str`, `Literal`, another component, one of these `| None`, or a `tuple` of numbers, texts or tuples; a list that is
    given for a tuple is kept as one. `option` declares the range of a number, `column_name` that a text names a column.
    `needs` and `makes` are declared as tuples of columns, those that are always read and written. On an instance they
    are complete: with the columns that options name, what components inside it need, and `own_needs` and `own_makes`,
    for columns that depend on options. A number may be a `Schedule`; a component that runs always holds numbers, since
    the recipe calls `at` before.

    Raises:
        RecipeError: an option has the wrong type or is out of range; the message names component, option and value.

    Example:
        >>> from dataclasses import dataclass
        >>> from typing import ClassVar
        >>> from agentrl_core.component import BatchComponent, Rows, column_name, draw, option
        >>> @dataclass(frozen=True)
        ... class Halved(BatchComponent):
        ...     phase: ClassVar[str] = "reward"
        ...     makes: ClassVar = (draw("score"),)
        ...     by: str = column_name("score", level="draw")
        ...     parts: int = option(2, at_least=1)
        ...     def __call__(self, batch):
        ...         rows = Rows(batch, "draw")
        ...         return rows.write(score=rows.values(self.by) / self.parts)
        >>> Halved(by="reward.format").needs
        (draw('reward.format'),)
        >>> Halved(parts=0)
        Traceback (most recent call last):
            ...
        agentrl_core.exceptions.RecipeError: ...Halved: option parts=0 is not possible; give a number of at least 1
    """

    phase: ClassVar[str] = ""
    needs: ClassVar[tuple[Column, ...]] = ()
    """The columns it reads."""
    makes: ClassVar[tuple[Column, ...]] = ()
    """The columns it adds."""

    __repr__ = component_repr

    def __init_subclass__(cls) -> None:
        cls.__repr__ = vars(cls).get("__repr__", component_repr)  # type: ignore[method-assign]  # else dataclass writes one

    def own_needs(self) -> Iterable[Column]:
        """Columns that the component reads because of its options, besides columns that an option names."""
        return ()

    def own_makes(self) -> Iterable[Column]:
        """Columns that the component adds because of its options."""
        return ()

    @property
    def needs_losses(self) -> bool:
        """Whether `next` reads the losses of draws, the column of `Updates.with_losses`."""
        return False

    @classmethod
    def title(cls) -> str:
        """Return the name for error messages: package and class, such as `loss.Policy`."""
        parts = cls.__module__.split(".")
        return f"{parts[1]}.{cls.__name__}" if parts[0] == "agentrl_core" and len(parts) > 1 else cls.__name__

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        names = {option.name for option in fields(self)}
        missed = [
            name
            for name, hint in hints.items()
            if name not in names and hint is not KW_ONLY and ClassVar not in (hint, typing.get_origin(hint))
        ]
        if missed:
            raise RecipeError(
                f"{self.title()}: {missed[0]} is not an option because its class is not a dataclass; decorate the "
                f"class with @dataclass(frozen=True)"
            )
        for option in fields(self):
            rule = declared(option.metadata)
            if isinstance(rule, ColumnName) and rule.level == "level" and "level" not in names:
                raise RecipeError(
                    f"{self.title()}: option {option.name} takes the level of its column from an option `level`, which "
                    f"the class lacks; add that option, or give column_name the level 'draw', 'step' or 'token'"
                )
            hint = hints[option.name]
            value, fits = _fit(getattr(self, option.name), hint)
            self.require(fits, option.name, f"give {_describe(hint)}")
            self.require(value == value or not isinstance(value, float), option.name, "give a number")  # noqa: PLR0124
            self.require(not isinstance(value, str) or is_unicode(value), option.name, "give a text that is Unicode")
            object.__setattr__(self, option.name, value)
            self._check_range(option.name, rule, takes_none=type(None) in typing.get_args(hint))
        variants = list(self._variants())  # which checks their numbers
        if not variants:
            self.check_options()
        # With options that change, these are the columns of all its forms.
        needs: Iterable[Column] = [column for each in variants for column in each.needs]
        makes: Iterable[Column] = [column for each in variants for column in each.makes]
        if not variants:
            needs = (*type(self).needs, *self._named(), *self.own_needs())
            makes = (*type(self).makes, *self.own_makes())
        for name, columns in (("needs", needs), ("makes", makes)):
            object.__setattr__(self, name, self._declared(name, columns))

    def _declared(self, name: str, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return the columns of `needs` or `makes`, each once."""
        for column in columns:
            if not isinstance(column, Column):
                raise RecipeError(
                    f"{self.title()}: {name} has {column!r}, which is not a column; give a tuple of draw(...), "
                    "step(...) or token(...)"
                )
        return tuple(dict.fromkeys(columns))

    def _check_range(self, name: str, rule: Rule | None, *, takes_none: bool) -> None:
        value = getattr(self, name)
        if isinstance(rule, Range) and isinstance(value, (int, float)):
            self.require(rule.holds(value), name, f"give {rule}{', or None' if takes_none else ''}")
        elif isinstance(rule, Range) and isinstance(value, tuple):
            wrong = next(
                (f" (item {place} is {item!r})" for place, item in enumerate(value) if not rule.holds(item)), ""
            )
            self.require(bool(value) and not wrong, name, f"give one item or more, each {rule}{wrong}")
        elif isinstance(rule, Filled):
            remedy = "give a text that is not empty" if isinstance(value, str) else "give a tuple of at least one item"
            self.require(value not in ("", ()), name, remedy)
        elif isinstance(rule, ColumnName) and not rule.optional:
            self.require(value != "", name, "name a column")

    def _named(self) -> Iterator[Column]:
        """Return the columns that options name and that inner components need."""
        for option in fields(self):
            value, rule = getattr(self, option.name), declared(option.metadata)
            if isinstance(value, Component):
                yield from value.needs
            elif isinstance(rule, ColumnName):
                yield from rule.columns(value, getattr(self, "level", "draw"))

    def changing(self, place: str = "") -> Iterator[tuple[str, Changing]]:
        """Return the changing options, by place, including those of inner components."""
        for option in fields(self):
            value, here = getattr(self, option.name), f"{place}.{option.name}"
            if isinstance(value, Changing):
                yield here, value
            if isinstance(value, Component):
                yield from value.changing(here)

    def _variants(self) -> Iterator[Self]:
        """Return the forms to check: both ends of each schedule, and the examples of other changing options."""
        changing_options = [value for _, value in self.changing()]
        if not changing_options:
            return
        ends = {end for value in changing_options if isinstance(value, Schedule) for end in value.ends} or {0}
        for number in range(max(1, *(len(value.examples) for value in changing_options))):
            for iteration in sorted(ends):
                yield self._with(
                    lambda value, _, iteration=iteration, number=number: (  # type: ignore[misc]
                        value.examples[min(number, len(value.examples) - 1)]
                        if value.examples
                        else value.now(iteration, {}, "")
                    ),
                    "",
                )

    def at(self, iteration: int, states: Mapping[str, Any] | None = None, place: str = "") -> Self:
        """Return the component of an iteration: each changing option is replaced by its value.

        Args:
            iteration: numbered from 0.
            states: states of components by place; None: the initial states.
            place: of this component, such as `loss[0].Policy`.
        """
        return self._with(lambda value, here: value.now(iteration, states or {}, here), place)

    def _with(self, resolve: Callable[[Changing, str], Any], place: str) -> Self:
        """Return the component with its changing options replaced."""
        values: dict[str, Any] = {}
        for option in fields(self):
            before, here = getattr(self, option.name), f"{place}.{option.name}"
            value = before
            if isinstance(value, Changing):
                hint = _hints(type(self))[option.name]
                if _holds(hint, value):
                    continue
                value = resolve(value, here)
                if isinstance(value, float) and not _fit(0.5, hint)[1]:
                    value = round(value)
            if isinstance(value, Component):
                value = value._with(resolve, here)  # noqa: SLF001 - a component asks those inside it
            if value is not before:
                values[option.name] = value
        return dataclasses.replace(self, **values) if values else self

    def check_options(self) -> None:
        """Check combinations of options with `require`. Types and ranges are already checked."""

    def require(self, condition: bool, option: str, remedy: str) -> None:  # noqa: FBT001 - as in assert
        """Raise a `RecipeError` about `option` unless `condition` holds; `remedy` says what to do."""
        if not condition:
            value = getattr(self, option)
            raise RecipeError(f"{self.title()}: option {option}={value!r:.200} is not possible; {remedy}")

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a plain table: its class under `component`, then its options.

        A class that the package of its phase or `agentrl_core.component` exports is written by its name, any other as
        `module:Class`. The reader of the table must be able to import that module. Options that are None are left out,
        or written as `"none"` if their default is not None.
        """
        table: dict[str, Any] = {"component": _address(type(self), _package(type(self)))}
        for option in fields(self):
            value = getattr(self, option.name)
            if value is None:
                if option.default is not None:
                    table[option.name] = _NULL
            else:
                table[option.name] = value.to_dict() if isinstance(value, (Component, Schedule)) else _plain(value)
            if isinstance(value, Component) and not isinstance(value, Changing):
                table[option.name]["component"] = _address(type(value), _package(type(self)))
        return table

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], package: str = "") -> Self:
        """Create a component of exactly this class from a table of `to_dict`.

        Args:
            table: output of `to_dict`.
            package: import name of the phase's package, in which inner components are found; empty: that of the class.

        Raises:
            RecipeError: an option is unknown, missing, of the wrong type or out of range.
        """
        hints = _hints(cls)
        options = {option.name: option for option in fields(cls)}
        package = package or _package(cls)
        table = renames.table().component(package, table)
        values: dict[str, Any] = {}
        for name, value in table.items():
            if name == "component":
                continue
            if name not in options:
                remedy = f"use one of: {', '.join(options)}" if options else "omit it, as there are no options"
                raise RecipeError(
                    f"{cls.title()}: option {name!r} is unknown; {near_names(str(name), options, remedy)}"
                )
            if isinstance(value, Mapping) and "component" not in value and _fit(0, hints[name])[1]:
                value = made_schedule(cls, name, value)  # noqa: PLW2901 - the table becomes what it describes
            elif isinstance(value, Mapping):
                try:
                    value = find_component(package, value)  # noqa: PLW2901
                except RecipeError as error:
                    raise type(error)(f"{cls.title()}: option {name}: {error}") from None
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


def made_schedule(kind: type[Component], name: str, table: Mapping[str, Any]) -> Schedule:
    """Create the schedule that a table has for option `name` of a class.

    Raises:
        RecipeError: a key is unknown or a value is not possible.
    """
    try:
        return Schedule(**table)
    except TypeError:
        needed = ", ".join(option.name for option in fields(Schedule) if option.default is MISSING)
        others = ", ".join(option.name for option in fields(Schedule) if option.default is not MISSING)
        raise RecipeError(
            f"{kind.title()}: option {name}={dict(table)!r:.200} is not a Schedule; give the keys {needed} and, if "
            f"needed, some of: {others}"
        ) from None


class ForeignComponentError(RecipeError):
    """Raised when a recipe is only displayed, but its table names a class outside of agentrl_core."""


@contextmanager
def only_own_components() -> Iterator[None]:
    """Refuse to import components from outside agentrl_core in this block.

    Use it to display recipes and runs of other people, since importing a module executes it.

    Raises:
        ForeignComponentError: a table in the block names a module of another package.
    """
    token = _only_own.set(True)
    try:
        yield
    finally:
        _only_own.reset(token)


def named_module(name: str) -> types.ModuleType:
    """Import the module that a recipe names.

    Raises:
        ForeignComponentError: the module is outside of agentrl_core, inside a block of `only_own_components`.
        ImportError: it cannot be imported.
    """
    if _only_own.get():
        package, _, inside = name.partition(".")
        if package != "agentrl_core" or inside.partition(".")[0] not in _OWN:
            raise ForeignComponentError(
                f"module {name!r} is not part of agentrl_core, so it is not imported to display a recipe; load the "
                f"recipe with Recipe.from_dict or from_toml if you trust its author"
            )
    return importlib.import_module(name)


def find_component(package: str, table: Mapping[str, Any]) -> Component:
    """Create the component that `table` describes.

    This imports the module that the table names, which executes it. Only read tables of people you trust (page *What is
    trusted*).

    Args:
        package: import name of the phase's package, such as `agentrl_core.loss`, for classes without a module.
        table: output of `Component.to_dict`. `component` is a class of the package or of `agentrl_core.component`, or
            any other class as `module:Class`; that module is imported.

    Raises:
        RecipeError: the package, module or class does not exist, or does not accept the options.
    """
    kind = find_class(package, table)
    return kind.from_dict(table, package if issubclass(kind, Changing) else "")


def find_class(package: str, table: Mapping[str, Any]) -> type[Component]:
    """Return the class that `table` names. See `find_component`."""
    short = package.removeprefix("agentrl_core.")
    table = renames.table().component(package, table)
    name = table.get("component")
    if name is None:
        raise RecipeError(f'{short}: the table has no component; add a line component = "ClassName"')
    if not isinstance(name, str):
        raise RecipeError(f'{short}: component is {name!r:.60}; give the name of a class, such as "ClassName"')
    if ":" in name:
        return _imported(short, name)
    try:
        known = exported(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise RecipeError(f"{short}: this phase has no components; remove it from the recipe") from None
    classes = {**exported(_COMMON), **known}
    kind = classes.get(name, Component)
    if kind is Component:
        own = 'give your own class with its module ("package.module:Class")'
        remedy = near_names(name, classes, f"{own}, or use one of: {', '.join(sorted(known))}")
        raise RecipeError(f"{short}: component {name!r:.200} does not exist; {remedy}")
    return kind


def _imported(short: str, address: str) -> type[Component]:
    """Import the class that `module:Class` names."""
    module, _, name = address.partition(":")
    try:
        kind = getattr(named_module(module), name, None)
    except ForeignComponentError:
        raise
    except (ImportError, ValueError, TypeError) as error:  # an empty or relative name raises ValueError or TypeError
        raise RecipeError(
            f"{short}: component {address!r:.200} cannot be imported: {error}; install its module or add it to "
            "PYTHONPATH"
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, Component)) or inspect.isabstract(kind):
        problem = "is abstract" if inspect.isabstract(kind) else "is not a component class"
        problem = f"does not exist: module {module!r} has no {name!r}" if kind is None else problem
        raise RecipeError(
            f"{short}: {address!r:.200} {problem}; give a class that is derived from a base class of "
            "agentrl_core.component and not abstract"
        )
    return kind


@functools.cache
def exported(package: str) -> dict[str, type[Component]]:
    """Return the components of a phase's package by name, without those that load on first use (with torch)."""
    module = importlib.import_module(package)
    return {
        key: kind
        for key in module.__all__
        if isinstance(kind := vars(module).get(key), type)
        and issubclass(kind, Component)
        and kind is not Component
        and not inspect.isabstract(kind)
    }


def _package(kind: type[Component]) -> str:
    """Return the package of a component's phase; without a phase, the phase package of the class or of a base."""
    phases = {f"agentrl_core.{package}" for package in PHASES.values()}
    homes = (base.__module__.rpartition(".")[0] for base in kind.__mro__)
    return f"agentrl_core.{PHASES[kind.phase]}" if kind.phase else next((home for home in homes if home in phases), "")


def _address(kind: type[Component], package: str) -> str:
    """Return a class's name for a table. Components of `package` and of every phase need no module."""
    is_known = any(exported(known).get(kind.__name__) is kind for known in (package, _COMMON) if known)
    return kind.__name__ if is_known else f"{kind.__module__}:{kind.__qualname__}"


def _fit(value: object, hint: Any) -> tuple[object, bool]:
    """Return the value converted to `hint` (an int becomes a float), and whether it matches."""
    origin = typing.get_origin(hint)
    if isinstance(value, Changing) and not value.is_number and not _holds(hint, value):
        return value, all(_fit(example, hint)[1] for example in value.examples)
    if origin in (types.UnionType, typing.Union):
        for part in typing.get_args(hint):
            fitted, fits = _fit(value, part)
            if fits:
                return fitted, True
        return value, False
    if origin is tuple:
        return _fit_items(value, typing.get_args(hint))
    if origin is Literal:
        return value, any(value == choice and type(value) is type(choice) for choice in typing.get_args(hint))
    if isinstance(value, Changing) and hint in (float, int):
        return value, value.is_number
    if hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                return float(value), math.isfinite(value)
            except OverflowError:  # an integer too large for a float
                pass
        return value, False
    if hint is int:
        return value, isinstance(value, int) and not isinstance(value, bool)
    return value, isinstance(value, hint)


def _fit_items(value: object, hints: tuple[Any, ...]) -> tuple[object, bool]:
    """Return a list or tuple as a tuple with items converted to `hints`, and whether all match; `...`: any length."""
    if not isinstance(value, (tuple, list)):
        return value, False
    if hints[-1] is ...:
        hints = hints[:1] * len(value)
    fitted = [_fit(item, hint) for item, hint in zip(value, hints, strict=False)]
    fits = len(hints) == len(value) and all(fits and item != "" for item, fits in fitted)
    return tuple(item for item, _ in fitted), fits


def _plain(value: Any) -> Any:
    """Return an option's value with lists in place of tuples."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _holds(hint: Any, value: Changing) -> bool:
    """Return whether the type of an option allows the changing value itself, such as a `Schedule`."""
    return any(isinstance(part, type) and isinstance(value, part) for part in (hint, *typing.get_args(hint)))


def _describe_items(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe_items(part) for part in typing.get_args(hint))
    if origin is tuple:
        *parts, last = (_describe_items(part) for part in typing.get_args(hint) if part is not ...)
        return f"tuples of {', '.join(parts)}{' and ' if parts else ''}{last}"
    return {str: "texts that are not empty", int: "whole numbers", float: "numbers"}.get(hint, str(hint))


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe(part) for part in typing.get_args(hint))
    if origin is tuple:
        return f"a tuple of {_describe_items(typing.get_args(hint)[0])}"
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and issubclass(hint, Component):
        return f"a {hint.title()}"
    names = {float: "a finite number", int: "a whole number", bool: "True or False", str: "a string"}
    return names.get(hint, f"a {hint}")
