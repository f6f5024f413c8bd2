"""Conditions on metrics: controllers that are 1 while they hold and 0 otherwise."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

from agentrl_core.component import State, option
from agentrl_core.component.controller import Controller


@dataclass(frozen=True)
class Condition(Controller, ABC):
    """Base class of controllers that are 0 or 1, for `when` of a hook, or for a `Choice` between two values.

    Args:
        metric: name of the metric.
    """

    metric: str = option(filled=True)

    @property
    def reads(self) -> tuple[str, ...]:
        """The name of the metric that the condition reads."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Return both possible values, 0 and 1."""
        return 0.0, 1.0

    def begin(self) -> State:
        """Return the initial state, in which the condition does not hold."""
        return {"value": 0.0}

    def value(self, state: State) -> float:
        """Return 1 if the condition holds, otherwise 0."""
        return float(state["value"])


@dataclass(frozen=True)
class Above(Condition):
    """Condition that the latest metric is above a threshold.

    Args:
        threshold: the threshold.

    Example:
        >>> from agentrl_core.schedule import Above
        >>> far = Above("approximate_kl", 0.02)
        >>> far.value(far.moved(far.initial_state(), {"approximate_kl": 0.03}))
        1.0
    """

    threshold: float = 0.0

    def move(self, state: State, *metrics: float) -> State:  # noqa: ARG002 - only the latest metric counts
        """Return the state after a measurement: whether the condition holds."""
        return {"value": float(metrics[0] > self.threshold)}


@dataclass(frozen=True)
class Below(Condition):
    """Condition that the latest metric is below a threshold.

    Args:
        threshold: the threshold.

    Example:
        >>> from agentrl_core.schedule import Below
        >>> settled = Below("max_kl", 0.2)
        >>> settled.value(settled.moved(settled.initial_state(), {"max_kl": 0.1}))
        1.0
    """

    threshold: float = 0.0

    def move(self, state: State, *metrics: float) -> State:  # noqa: ARG002 - only the latest metric counts
        """Return the state after a measurement: whether the condition holds."""
        return {"value": float(metrics[0] < self.threshold)}


@dataclass(frozen=True)
class Plateau(Condition):
    """Condition that a metric rose by at most `gain` over its best in `patience` measurements; then the count restarts.

    BFS-Prover-V2 (arXiv:2509.06493) restarts from the base model if the success rate gained no more than 0.5 % in three
    rounds: SyncModel("start", "policy", when=Plateau("evaluation")).

    Args:
        gain: smallest rise that counts, at least 0.
        patience: number of measurements without a rise, at least 1.

    Example:
        >>> from agentrl_core.schedule import Plateau
        >>> flat = Plateau("success", gain=0.1, patience=2)
        >>> state, values = flat.initial_state(), []
        >>> for success in (0.2, 0.25, 0.25, 0.5):
        ...     state = flat.moved(state, {"success": success})
        ...     values.append(flat.value(state))
        >>> values
        [0.0, 0.0, 1.0, 0.0]
    """

    gain: float = option(0.005, at_least=0)
    patience: int = option(3, at_least=1)

    def begin(self) -> State:
        """Return the initial state, without a best value."""
        return {"value": 0.0, "best": None, "waited": 0}

    def move(self, state: State, *metrics: float) -> State:
        """Update the state with one measurement."""
        best, waited = state["best"], state["waited"] + 1
        if best is None or metrics[0] > best + self.gain or state["value"]:
            return {"value": 0.0, "best": metrics[0], "waited": 0}
        return {"value": float(waited >= self.patience), "best": best, "waited": waited}
