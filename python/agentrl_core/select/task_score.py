"""Scores of tasks, computed from tracked numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Component, option


@dataclass(frozen=True)
class TaskScore(Component, ABC):
    """Base class of scores of candidates, computed from a tracker's number. Larger scores are chosen first.

    The score of a number must not depend on other numbers, since large pools are scored in pieces.
    """

    @abstractmethod
    def __call__(self, estimates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one score per candidate; minus infinity excludes it."""


@dataclass(frozen=True)
class NearTarget(TaskScore):
    """Prefer tasks with a number near a target: -max(|x - target| - width, 0).

    Args:
        target: the best number.
        width: numbers within this distance score 0.

    Raises:
        RecipeError: an option is out of range.

    Source: MoPPS arXiv:2507.04632 (its order is that of the squares), DOTS arXiv:2506.05316.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import NearTarget
        >>> NearTarget(0.5, width=0.25)(np.array([0.0, 0.25, 0.5])).tolist()
        [-0.25, 0.0, 0.0]
    """

    target: float = 0.5
    width: float = option(0.0, at_least=0)

    def __call__(self, estimates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the negative distance of each number from the target."""
        return -np.maximum(np.abs(estimates - self.target) - self.width, 0.0)


@dataclass(frozen=True)
class OutcomeVariance(TaskScore):
    """Prefer tasks with a large spread of outcomes: (sqrt(p (1 - p)) + floor)^power.

    Args:
        power: exponent; 0 makes all scores equal.
        floor: added to the spread; above 0, no task is excluded for good.

    Raises:
        RecipeError: an option is out of range.

    Source: MSSR arXiv:2512.18215.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import OutcomeVariance
        >>> OutcomeVariance(floor=0.0)(np.array([0.5, 1.0])).tolist()
        [0.5, 0.0]
    """

    power: float = option(1.0, at_least=0)
    floor: float = option(1e-6, at_least=0)

    def __call__(self, estimates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the spread of each task."""
        return (np.sqrt(np.clip(estimates * (1 - estimates), 0.0, None)) + self.floor) ** self.power
