"""PID feedback control of a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentrl_core.component import State, option
from agentrl_core.component.controller import Controller


@dataclass(frozen=True)
class PID(Controller):
    """Control a number by PID: start + proportional e + integral I + derivative (e - previous e).

    e = x - target, with x the metric, or its velocity: the change of the average in average <- momentum average + (1 -
    momentum) metric. I is the sum of all e, within +- windup. The first metric has no previous e and no velocity, so
    the number stays `start`. SAFE moves its KL threshold of 0.3 by the velocity of the reward: PID("reward",
    target=0.001, start=0.3, of="velocity").

    Args:
        metric: name of the metric.
        target: target value of x.
        start: the number at error 0.
        proportional: gain of e.
        integral: gain of I.
        derivative: gain of the change of e.
        of: meaning of x: `level` or `velocity`.
        momentum: momentum of the average, at least 0 and below 1.
        windup: bound of I, above 0.
        at_least: smallest number; None: none.
        at_most: largest number; None: none.

    Example:
        >>> from agentrl_core.schedule import PID
        >>> number = PID("length", target=1.0, start=0.0, proportional=0.5, integral=0.1, derivative=0.2)
        >>> state = number.initial_state()
        >>> for value in (2.0, 3.0):
        ...     state = number.moved(state, {"length": value})
        >>> round(number.value(state), 6)  # e = 2, I = 1 + 2, change 1: 1 + 0.3 + 0.2
        1.5
    """

    metric: str = option("reward", filled=True)
    target: float = 0.0
    start: float = 0.0
    proportional: float = 0.3
    integral: float = 0.01
    derivative: float = 0.05
    of: Literal["level", "velocity"] = "level"
    momentum: float = option(0.95, at_least=0, below=1)
    windup: float = option(1.0e9, above=0)
    at_least: float | None = None
    at_most: float | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The name of the metric that the controller reads."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Return possible values: the start and the bounds."""
        return (self._held(self.start), *(bound for bound in (self.at_least, self.at_most) if bound is not None))

    def begin(self) -> State:
        """Return the initial state, before the first measurement."""
        return {"value": self._held(self.start), "error": None, "integral": 0.0, "average": None}

    def move(self, state: State, *metrics: float) -> State:
        """Update the state with one measurement."""
        before = state["average"]
        average = metrics[0] if before is None else self.momentum * before + (1.0 - self.momentum) * metrics[0]
        if self.of == "velocity" and before is None:
            return {**state, "average": average}
        error = (metrics[0] if self.of == "level" else average - before) - self.target
        integral = min(max(state["integral"] + error, -self.windup), self.windup)
        change = 0.0 if state["error"] is None else error - state["error"]
        moved = self.proportional * error + self.integral * integral + self.derivative * change
        return {"value": self._held(self.start + moved), "error": error, "integral": integral, "average": average}

    def value(self, state: State) -> float:
        """Return the current number of the controller."""
        return float(state["value"])

    def _held(self, value: float) -> float:
        value = value if self.at_least is None else max(self.at_least, value)
        return value if self.at_most is None else min(self.at_most, value)
