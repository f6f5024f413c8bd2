"""Controllers of a coefficient: pure functions of their state and of what was measured.

Start one with `start()`, give `next` what an update measured, keep the state (a number) with the checkpoint and put it
into the loss: `policy.replace(kl=...)` of a recipe, or `dataclasses.replace`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from agentrl_core.component.component import Component


@dataclass(frozen=True)
class Controller(Component, ABC):
    """Base of the controllers: the state is the coefficient.

    Args:
        initial: the first coefficient, above 0.
        target: what the measured value is driven to, above 0.
    """

    initial: float = 0.01
    target: float = 0.1

    def check_options(self) -> None:
        """Ranges as documented."""
        for name in ("initial", "target"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")

    def start(self) -> float:
        """The first coefficient."""
        return self.initial

    @abstractmethod
    def next(self, coefficient: float, measured: float, samples: int = 1) -> float:
        """The coefficient after an update.

        Args:
            coefficient: that of the update.
            measured: its mean KL or entropy.
            samples: how many trajectories it held.
        """


@dataclass(frozen=True)
class Proportional(Controller):
    """Ziegler's adaptive KL controller (arXiv:1909.08593): c * (1 + clip(KL / target - 1, +-0.2) samples / horizon).

    Args:
        horizon: trajectories over which the coefficient may change by a fifth at most, at least 1.

    Example:
        >>> from agentrl_core.loss import Proportional
        >>> Proportional(initial=0.1, target=6.0, horizon=100).next(0.1, measured=12.0, samples=50)
        0.11
    """

    horizon: int = 10_000

    def check_options(self) -> None:
        """Ranges as documented."""
        super().check_options()
        self.require(self.horizon >= 1, "horizon", "give a whole number of at least 1")

    def next(self, coefficient: float, measured: float, samples: int = 1) -> float:
        """The formula of the class."""
        error = min(max(measured / self.target - 1.0, -0.2), 0.2)
        return coefficient * (1.0 + error * samples / self.horizon)


@dataclass(frozen=True)
class Doubling(Controller):
    """PPO's penalty (arXiv:1707.06347): halve below target / 1.5, double above 1.5 target.

    Example:
        >>> from agentrl_core.loss import Doubling
        >>> Doubling(target=0.01).next(1.0, measured=0.02)
        2.0
    """

    def next(self, coefficient: float, measured: float, samples: int = 1) -> float:  # noqa: ARG002
        """The formula of the class."""
        if measured > 1.5 * self.target:
            return 2.0 * coefficient
        return coefficient / 2.0 if measured < self.target / 1.5 else coefficient


@dataclass(frozen=True)
class Exponential(Controller):
    """A step of the coefficient's logarithm towards the target, within bounds.

    `above`: log c += rate (measured - target): for a penalty, which must grow with what it restrains (ARES, FixPO:
    measured is a KL). `below`: log c += rate (target - measured): for a bonus (SAC's entropy temperature,
    arXiv:1812.05905: measured is the mean entropy of a token).

    Args:
        direction: `above` or `below`.
        rate: above 0.
        least: the coefficient is at least this, above 0.
        most: the coefficient is at most this.

    Example:
        >>> from agentrl_core.loss import Exponential
        >>> sac = Exponential(initial=1e-3, target=0.4, direction="below", rate=1.0)
        >>> sac.next(1e-3, measured=0.2) > 1e-3
        True
    """

    direction: Literal["above", "below"] = "above"
    rate: float = 0.05
    least: float = 1e-8
    most: float = 100.0

    def check_options(self) -> None:
        """Ranges as documented."""
        super().check_options()
        self.require(self.rate > 0.0, "rate", "give a number above 0")
        self.require(0.0 < self.least <= self.initial <= self.most, "least", "give 0 < least <= initial <= most")

    def next(self, coefficient: float, measured: float, samples: int = 1) -> float:  # noqa: ARG002
        """The formula of the class."""
        error = measured - self.target if self.direction == "above" else self.target - measured
        return min(max(coefficient * math.exp(min(self.rate * error, 50.0)), self.least), self.most)
