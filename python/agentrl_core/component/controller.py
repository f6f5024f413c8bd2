"""Controllers, numbers that follow metrics, and `Choice`, which selects an option by a number."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from agentrl_core.component.component import Component, exported, find_component, made_schedule
from agentrl_core.component.schedule import Changing, Schedule
from agentrl_core.component.state import IterationRecord, State, Stateful
from agentrl_core.exceptions import RecipeError

MISSED = "missed"
"""Key in the state of a controller: how often its metrics were missing or NaN."""


@dataclass(frozen=True)
class Controller(Stateful, Changing, ABC):
    """Base class of numbers that follow metrics. Any numeric option of a component may be one.

    It moves once per iteration, in `Collector.end_iteration`, by the metrics of the iteration, or after every optimizer
    step, by the metrics of that step. If a metric is missing or NaN, the number stays and the event is counted. A step
    without its metrics, such as a critic's, is passed over, unless no step of the iteration has them. A subclass
    defines the metrics it `reads`, its state at `begin`, how it `move`s, and its `value`.

    Args:
        every: how often it moves: `iteration` or `step`.
    """

    phase: ClassVar[str] = ""
    every: Literal["iteration", "step"] = field(default="iteration", kw_only=True)

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """Return the names of the metrics that the controller reads: `reference_kl`, `critic.loss`, `success@math`."""

    @abstractmethod
    def begin(self) -> State:
        """Return the state before the first move."""

    @abstractmethod
    def move(self, state: State, *metrics: float) -> State:
        """Return the next state from the followed metrics, in the order of `reads`."""

    @abstractmethod
    def value(self, state: State) -> float:
        """Return the controlled number for a state."""

    @property
    def examples(self) -> tuple[Any, ...]:
        """Return the first number, with which components are checked."""
        return (self.value(self.begin()),)

    def initial_state(self) -> State:
        """Return the first state, with no missed metrics."""
        return {**self.begin(), MISSED: 0}

    def moved(self, state: State, metrics: Mapping[str, float]) -> State:
        """Return the state after one set of metrics."""
        numbers = [metrics.get(name, math.nan) for name in self.reads]
        if not all(math.isfinite(number) for number in numbers):
            return {**state, MISSED: state[MISSED] + 1}
        return {**self.move(state, *numbers), MISSED: state[MISSED]}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the state after an iteration: moved once, or with `every="step"` by each step that has the metrics."""
        if self.every == "iteration":
            return self.moved(state, closed.metrics)
        measured = [metrics for metrics in closed.steps if self.is_measured_by(metrics)]
        # If no step has them, the first one counts as a miss.
        return functools.reduce(self.moved, measured or closed.steps[:1], state)

    def is_measured_by(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the metrics of a step include those that the controller reads."""
        return metrics.keys() >= set(self.reads)

    def now(self, iteration: int, states: Mapping[str, Any], place: str) -> float:  # noqa: ARG002 - it follows metrics
        """Return the number from the state at the start of the iteration."""
        return self.value(states.get(place) or self.initial_state())

    def to_dict(self) -> dict[str, Any]:
        """Return the controller as a table. Classes of the controllers' package are written without a module."""
        return {**super().to_dict(), "component": _named(type(self))}


@dataclass(frozen=True)
class Choice(Component, Changing):
    """One of several components, options or model names, chosen by a schedule or controller. Any option may be one.

    Args:
        of: the alternatives: components, numbers, texts or None; at least two.
        by: index of the chosen alternative, rounded and clamped to the valid range. A condition such as
            `schedule.Above` chooses between two.

    Raises:
        RecipeError: an argument is not possible.

    Example:
        From the twentieth iteration on the other estimator:

        >>> from agentrl_core import Schedule, advantage, recipes
        >>> from agentrl_core.schedule import Choice
        >>> by = Schedule(0, 1, iterations=20, kind="step")
        >>> either = advantage.GroupRelative(), advantage.TrackedBaseline()
        >>> recipe = recipes.GRPO.replace(advantage=Choice(either, by))
        >>> [type(recipe.at(iteration).advantage).__name__ for iteration in (19, 20)]
        ['GroupRelative', 'TrackedBaseline']
    """

    is_number: ClassVar[bool] = False
    of: tuple[Any, ...]
    by: Controller | Schedule

    def __post_init__(self) -> None:
        alternatives: Any = self.of  # TOML tables give a list
        many = isinstance(alternatives, (tuple, list)) and len(alternatives) > 1
        self.require(many, "of", "give a tuple of at least two values")
        self.require(isinstance(self.by, (Controller, Schedule)), "by", "give a Schedule or a controller")
        object.__setattr__(self, "of", tuple(self.of))
        inside = [option for option in self.of if isinstance(option, Component)]
        phases = {option.phase for option in inside}
        self.require(len(phases) < 2, "of", "give components of one phase")
        object.__setattr__(self, "phase", phases.pop() if phases else "")
        for name in ("needs", "makes"):
            columns = [column for option in inside for column in getattr(option, name)]
            object.__setattr__(self, name, tuple(dict.fromkeys(columns)))

    @property
    def examples(self) -> tuple[Any, ...]:
        """Return the alternatives."""
        return self.of

    def changing(self, place: str = "") -> Iterator[tuple[str, Changing]]:
        """Yield the changing index, and the changing options inside the alternatives."""
        yield f"{place}.by", self.by
        for number, option in enumerate(self.of):
            if isinstance(option, Component):
                yield from option.changing(f"{place}.of[{number}]")

    def now(self, iteration: int, states: Mapping[str, Any], place: str) -> Any:
        """Return the alternative of an iteration."""
        index = round(self.by.now(iteration, states, f"{place}.by"))
        number = min(max(index, 0), len(self.of) - 1)
        chosen = self.of[number]
        return chosen.at(iteration, states, f"{place}.of[{number}]") if isinstance(chosen, Component) else chosen

    def at(self, iteration: int, states: Mapping[str, Any] | None = None, place: str = "") -> Any:
        """Return the alternative of an iteration."""
        return self.now(iteration, states or {}, place)

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as a table: alternatives under `of`, components as tables, None as a table with `none`."""
        tables = any(isinstance(option, Component) for option in self.of)
        of = [
            option.to_dict()
            if isinstance(option, Component)
            else ({"component": "none"} if tables else "none")
            if option is None
            else option
            for option in self.of
        ]
        return {"component": _named(type(self)), "of": of, "by": self.by.to_dict()}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], package: str = "") -> Self:
        """Create a choice from a table of `to_dict`; components of `package` are named without a module."""
        unknown = [name for name in table if name not in ("component", "of", "by")]
        if unknown or not ("of" in table and "by" in table):
            raise RecipeError(
                f"{cls.title()}: the table has the keys {list(table)!r:.200}; give the options 'of' and 'by' alone"
            )
        by = table["by"]
        if isinstance(by, Mapping):
            by = find_component(package, by) if "component" in by else made_schedule(cls, "by", by)
        none = ("none", {"component": "none"})
        of = table["of"] if isinstance(table["of"], (list, tuple)) else (table["of"],)
        of = tuple(
            None if option in none else find_component(package, option) if isinstance(option, Mapping) else option
            for option in of
        )
        return cls(of, by)


def _named(kind: type[Component]) -> str:
    """Return a class's name for a table, independent of the package that reads the table."""
    package = "agentrl_core.schedule"
    module = package if exported(package).get(kind.__name__) is kind else kind.__module__
    return f"{module}:{kind.__qualname__}"
