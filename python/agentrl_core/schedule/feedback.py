"""Feedback controllers: PID, and switches between two numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentrl_core.component import Controller, State, option


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
        """The metric."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Return the start and the bounds."""
        return (self._held(self.start), *(bound for bound in (self.at_least, self.at_most) if bound is not None))

    def begin(self) -> State:
        """Return the state before the first metric."""
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
        """The number."""
        return float(state["value"])

    def _held(self, value: float) -> float:
        value = value if self.at_least is None else max(self.at_least, value)
        return value if self.at_most is None else min(self.at_most, value)


@dataclass(frozen=True)
class BangBang(Controller):
    """One of two numbers, by the side of a threshold on which the metric was last.

    AEPO's temperature (arXiv:2510.08141) is BangBang("entropy", threshold=..., below=1.2, above=0.8): hot where the
    entropy is at most the target.

    Args:
        metric: name of the metric.
        threshold: where it switches.
        below: the number where the metric is at most the threshold, and before the first metric.
        above: the number where it is above.

    Example:
        >>> from agentrl_core.schedule import BangBang
        >>> temperature = BangBang("entropy", threshold=0.5, below=1.2, above=0.8)
        >>> temperature.value(temperature.moved(temperature.initial_state(), {"entropy": 0.7}))
        0.8
    """

    metric: str = option("entropy", filled=True)
    threshold: float = 0.5
    below: float = 1.2
    above: float = 0.8

    @property
    def reads(self) -> tuple[str, ...]:
        """The metric."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Both numbers."""
        return self.below, self.above

    def begin(self) -> State:
        """Below."""
        return {"above": False}

    def move(self, state: State, *metrics: float) -> State:  # noqa: ARG002 - the last one alone counts
        """The side of the metric."""
        return {"above": metrics[0] > self.threshold}

    def value(self, state: State) -> float:
        """The number of the side."""
        return self.above if state["above"] else self.below


@dataclass(frozen=True)
class Hysteresis(Controller):
    """0 or 1: 1 once the average of a metric has reached `high`, 0 again once it has fallen to `low`.

    average <- momentum average + (1 - momentum) metric, at first the metric itself. In a `Choice` it changes between
    phases that each go on until they are saturated (Vision-Zero, arXiv:2509.25541: momentum 0.9).

    Args:
        metric: name of the metric.
        low: where it falls back to 0.
        high: where it rises to 1, above `low`.
        momentum: of the average, at least 0 and below 1.

    Example:
        >>> from agentrl_core.schedule import Hysteresis
        >>> phase = Hysteresis("success", low=0.3, high=0.7, momentum=0.0)
        >>> state, values = phase.initial_state(), []
        >>> for success in (0.5, 0.8, 0.5, 0.2, 0.5):
        ...     state = phase.moved(state, {"success": success})
        ...     values.append(phase.value(state))
        >>> values
        [0.0, 1.0, 1.0, 0.0, 0.0]
    """

    metric: str = option("success", filled=True)
    low: float = 0.3
    high: float = 0.7
    momentum: float = option(0.9, at_least=0, below=1)

    def check_options(self) -> None:
        """There is room between the thresholds."""
        self.require(self.low < self.high, "low", f"give a number below high={self.high}")

    @property
    def reads(self) -> tuple[str, ...]:
        """The metric."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Both."""
        return 0.0, 1.0

    def begin(self) -> State:
        """0, and no average."""
        return {"value": 0.0, "average": None}

    def move(self, state: State, *metrics: float) -> State:
        """One measurement."""
        before = metrics[0] if state["average"] is None else state["average"]
        average = self.momentum * before + (1.0 - self.momentum) * metrics[0]
        value = 1.0 if average >= self.high else 0.0 if average <= self.low else state["value"]
        return {"value": value, "average": average}

    def value(self, state: State) -> float:
        """0 or 1."""
        return float(state["value"])
