"""Which finished groups enter the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import Column, Component
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import filters


@dataclass(frozen=True)
class Admission(Component, ABC):
    """Base of the components that accept or reject finished groups.

    The collector rolls out further tasks in place of rejected groups, at most `rounds` rounds in one iteration.
    """

    phase: ClassVar[str] = "admit"

    @property
    def needs(self) -> tuple[Column, ...]:
        """The score of each trajectory."""
        return (("draw", "score"), ("draw", "group_id"))

    @property
    def rounds(self) -> int:
        """How many rounds of rollouts an iteration may take to fill its batch."""
        return 1

    @abstractmethod
    def __call__(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Accept (True) or reject (False) each group.

        Args:
            scores: one per trajectory; NaN where the trajectory is invalid.
            groups: dense group of each trajectory, 0 to k-1, in any order.

        Returns:
            `bool[k]`, one per group.
        """


@dataclass(frozen=True)
class AcceptAll(Admission):
    """Accept every group.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import AcceptAll
        >>> AcceptAll()(np.array([1.0, 1.0, 0.0]), np.array([0, 0, 1], dtype=np.uint32)).tolist()
        [True, True]
    """

    def __call__(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Accept every group."""
        _, _, size = _extent(scores, groups)
        return np.ones(len(size), dtype=np.bool_)


@dataclass(frozen=True)
class InformativeGroups(Admission):
    """Reject groups whose valid scores are all equal: their group-relative advantages are zero.

    This is the dynamic sampling of DAPO (arXiv:2503.14476): rollouts go on until the batch is full of groups with
    0 < std(score), at most `max_rounds` rounds. A group with no valid score is rejected. A group with one valid
    score is accepted, as in DAPO's public code (its advantage depends on the `singleton` rule).

    Args:
        max_rounds: rounds of rollouts in one iteration, at least 1.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import InformativeGroups
        >>> groups = np.array([0, 0, 1, 1], dtype=np.uint32)
        >>> InformativeGroups()(np.array([1.0, 0.0, 1.0, 1.0]), groups).tolist()
        [True, False]
    """

    max_rounds: int = 4

    def check_options(self) -> None:
        """`max_rounds` is at least 1."""
        self.require(self.max_rounds >= 1, "max_rounds", "give a whole number of at least 1")

    @property
    def rounds(self) -> int:
        """`max_rounds`."""
        return self.max_rounds

    def __call__(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Accept the groups with at least two different valid scores, or exactly one valid score."""
        lowest, highest, size = _extent(scores, groups)
        accepted: NDArray[np.bool_] = (highest > lowest) | (size == 1)
        return accepted


@dataclass(frozen=True)
class GroupBand(Admission):
    """Accept groups whose scores vary enough and whose mean score lies in a band; rollouts go on for a full batch.

    The same rules after the advantages are made are `weight.GroupFilter`. Sources: PRIME arXiv:2502.01456
    (`min_std=None, low=0.2, high=0.8`); UI-S1 arXiv:2509.11543 (`min_std=0.3`); SimpleTIR arXiv:2509.02479
    (`min_std=1e-3, low=0.1, high=0.9`).

    Args:
        min_std: the standard deviation must be above this; None: not asked.
        ddof: 0 divides the variance by n, 1 by n - 1.
        low: the least mean; None: none.
        high: the largest mean; None: none.
        min_count: the least number of trajectories with a score.
        max_rounds: rounds of rollouts in one iteration, at least 1.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import GroupBand
        >>> groups = np.array([0, 0, 1, 1], dtype=np.uint32)
        >>> GroupBand(low=0.2, high=0.8)(np.array([1.0, 0.0, 1.0, 0.9]), groups).tolist()
        [True, False]
    """

    min_std: float | None = 0.0
    ddof: int = 0
    low: float | None = None
    high: float | None = None
    min_count: int = 1
    max_rounds: int = 4

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.min_std is None or self.min_std >= 0.0, "min_std", "give a number of at least 0, or None")
        self.require(self.ddof in (0, 1), "ddof", "give 0 or 1")
        self.require(
            self.low is None or self.high is None or self.low <= self.high, "low", "give a number of at most high"
        )
        self.require(self.min_count >= 1, "min_count", "give a number of at least 1")
        self.require(self.max_rounds >= 1, "max_rounds", "give a whole number of at least 1")

    @property
    def rounds(self) -> int:
        """`max_rounds`."""
        return self.max_rounds

    def __call__(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Accept the groups that the options allow; one without a valid score is rejected."""
        _, _, size = _extent(scores, groups)
        valid = np.isfinite(scores)
        kept = filters.group_band(
            np.where(valid, scores, 0.0),
            groups,
            min_std=self.min_std,
            low=self.low,
            high=self.high,
            min_count=self.min_count,
            ddof=self.ddof,
            valid=valid,
        )
        accepted = np.zeros(len(size), dtype=np.bool_)
        accepted[groups[kept]] = True
        return accepted


def _extent(
    scores: NDArray[np.floating], groups: NDArray[np.uint32]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Smallest and largest valid score of each group, and how many valid scores it has."""
    if scores.shape != groups.shape or scores.ndim != 1:
        raise InvalidInputError(
            f"scores has shape {scores.shape} and groups has shape {groups.shape}; give one of each per trajectory"
        )
    count = int(groups.max()) + 1 if len(groups) else 0
    valid = np.isfinite(scores)
    lowest, highest = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(lowest, groups[valid], scores[valid])
    np.maximum.at(highest, groups[valid], scores[valid])
    return lowest, highest, np.bincount(groups[valid], minlength=count).astype(np.int64)
