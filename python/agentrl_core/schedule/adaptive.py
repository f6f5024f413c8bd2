"""Coefficients that keep a metric at a target: proportional, logarithmic or as a dual variable."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass
from typing import Literal

from agentrl_core.component import State, option
from agentrl_core.component.controller import Controller


@dataclass(frozen=True)
class Adaptive(Controller, ABC):
    """Base class of coefficients that change while a metric is away from its target, within bounds.

    Args:
        metric: name of the metric.
        target: target value of the metric.
        start: the coefficient before the first move.
        at_least: smallest coefficient.
        at_most: largest coefficient; None: none.
    """

    metric: str = option("reference_kl", filled=True)
    target: float = option(0.1, above=0)
    start: float = option(1.0, at_least=0)
    at_least: float = option(0.0, at_least=0)
    at_most: float | None = option(None, above=0)

    def check_options(self) -> None:
        """Require `start` within the bounds."""
        bounds = f"at_least={self.at_least}, at_most={self.at_most}"
        self.require(self.start == self._held(self.start), "start", f"give a number within {bounds}")

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the name of the metric that the coefficient follows."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Return possible values: the start and the bounds. An option that cannot be 0 needs `at_least`."""
        return (self.start, self.at_least, *(() if self.at_most is None else (self.at_most,)))

    def begin(self) -> State:
        """Return the initial state: the coefficient `start`."""
        return {"value": self.start}

    def value(self, state: State) -> float:
        """Return the current coefficient."""
        return float(state["value"])

    def _held(self, value: float) -> float:
        return max(self.at_least, value if self.at_most is None else min(value, self.at_most))


@dataclass(frozen=True)
class AdaptiveKL(Adaptive):
    """Adapt the KL coefficient in proportion to the clipped relative error, as PPO for language models does.

    coefficient <- coefficient (1 + gain clip(metric / target - 1, -limit, limit))

    Fine-tuning language models from human preferences, arXiv:1909.08593, section 2.2 (gain 0.1, limit 0.2). Public code
    uses gain = sequences of a batch / horizon (10 000).

    Args:
        gain: K, above 0.
        limit: largest relative error that counts, above 0.

    Example:
        >>> from agentrl_core.schedule import AdaptiveKL
        >>> coefficient = AdaptiveKL("reference_kl", target=6.0, start=0.2)
        >>> state = coefficient.moved(coefficient.initial_state(), {"reference_kl": 12.0})
        >>> round(coefficient.value(state), 6)  # 0.2 (1 + 0.1 x 0.2)
        0.204
    """

    gain: float = option(0.1, above=0)
    limit: float = option(0.2, above=0)

    def move(self, state: State, *metrics: float) -> State:
        """Multiply the coefficient by 1 + gain * the clipped relative error."""
        error = min(max(metrics[0] / self.target - 1.0, -self.limit), self.limit)
        return {"value": self._held(state["value"] * (1.0 + self.gain * error))}


@dataclass(frozen=True)
class LogStep(Adaptive):
    """Move the logarithm of a coefficient by the clipped relative error of the metric's average (ARES).

    average <- momentum average + (1 - momentum) metric, initially the metric itself log coefficient <- log coefficient
    + clip(rate e, -limit, limit), e = average / target - 1, if |e| > dead_zone

    ARES, arXiv:2510.08457 (rate 0.05, limit 0.2, coefficient from 1e-4 to 100), which has one coefficient for each
    bucket of difficulty: give each the metric of its bucket.

    Args:
        rate: step size of the logarithm, above 0.
        limit: largest step of the logarithm, above 0.
        momentum: momentum of the average, at least 0 and below 1; 0: the metric itself.
        dead_zone: relative errors up to this are ignored.

    Example:
        >>> from agentrl_core.schedule.adaptive import LogStep
        >>> coefficient = LogStep("reference_kl", target=0.1, rate=0.5)
        >>> state = coefficient.moved(coefficient.initial_state(), {"reference_kl": 0.12})
        >>> round(coefficient.value(state), 6)  # exp(0.5 x 0.2)
        1.105171
    """

    start: float = option(1.0, above=0)
    rate: float = option(0.05, above=0)
    limit: float = option(0.2, above=0)
    momentum: float = option(0.0, at_least=0, below=1)
    dead_zone: float = option(0.0, at_least=0)

    def begin(self) -> State:
        """Return the initial state: the coefficient `start`, without an average."""
        return {"value": self.start, "average": None}

    def move(self, state: State, *metrics: float) -> State:
        """Multiply the coefficient by exp(clipped rate * relative error of the average), or by 1 in the dead zone."""
        before = metrics[0] if state["average"] is None else state["average"]
        average = self.momentum * before + (1.0 - self.momentum) * metrics[0]
        error = average / self.target - 1.0
        step = 0.0 if abs(error) <= self.dead_zone else min(max(self.rate * error, -self.limit), self.limit)
        return {"value": self._held(state["value"] * math.exp(step)), "average": average}


@dataclass(frozen=True)
class Dual(Adaptive):
    """Dual variable of a constraint: it rises by the violation and falls while the constraint is slack.

    linear:       coefficient <- max(at_least, coefficient + rate (metric - target))
    logarithmic:  log coefficient <- log coefficient + rate coefficient (metric - target)

    with the opposite sign if `holds` is `at_least`. Both are steps of gradient ascent on coefficient (metric - target),
    by the coefficient or by its logarithm. The temperature of soft actor-critic (arXiv:1812.05905) is
    `Dual("entropy", target=..., holds="at_least", kind="logarithmic")`.

    Args:
        rate: step size of the ascent, above 0.
        holds: `at_most`: the metric should not be above the target; `at_least`: not below.
        kind: `linear` or `logarithmic`.

    Example:
        >>> from agentrl_core.schedule import Dual
        >>> cost = Dual("cost", target=1.0, start=0.0, rate=0.5)
        >>> state = cost.initial_state()
        >>> for value in (2.0, 1.5, 0.0):
        ...     state = cost.moved(state, {"cost": value})
        >>> cost.value(state)  # 0 + 0.5 + 0.25 - 0.5
        0.25
    """

    rate: float = option(0.01, above=0)
    holds: Literal["at_most", "at_least"] = "at_most"
    kind: Literal["linear", "logarithmic"] = "linear"

    def check_options(self) -> None:
        """Require a positive `start` for the logarithmic kind."""
        super().check_options()
        self.require(self.kind == "linear" or self.start > 0, "start", "give a number above 0: its logarithm moves")

    def move(self, state: State, *metrics: float) -> State:
        """Move the coefficient by one step of gradient ascent."""
        step = self.rate * (metrics[0] - self.target) * (1.0 if self.holds == "at_most" else -1.0)
        value = state["value"]
        value = value + step if self.kind == "linear" else value * math.exp(value * step)
        return {"value": self._held(value)}
