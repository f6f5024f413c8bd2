"""Which finished groups enter the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Column, Component, draw, option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.select.band import Band


@dataclass(frozen=True)
class Admission(Component, ABC):
    """Base of the components that accept or reject finished groups.

    The collector rolls out further tasks in place of rejected groups, at most `rounds` rounds in one iteration.
    """

    phase: ClassVar[str] = "admit"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"))

    @property
    def rounds(self) -> int:
        """How many rounds of rollouts an iteration may take to fill its batch."""
        return 1

    def __call__(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Accept (True) or reject (False) each group.

        Args:
            scores: one per trajectory; NaN where the trajectory is invalid.
            groups: dense group of each trajectory, 0 to k-1, in any order.

        Returns:
            `bool[k]`, one per group.

        Raises:
            InvalidInputError: the lengths differ.
        """
        if scores.shape != groups.shape or scores.ndim != 1:
            raise InvalidInputError(
                f"scores has shape {scores.shape} and groups has shape {groups.shape}; give one of each per trajectory"
            )
        admitted = np.zeros(int(groups.max()) + 1 if len(groups) else 0, dtype=np.bool_)
        admitted[groups[self.members(scores, groups)]] = True
        return admitted

    @abstractmethod
    def members(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which trajectories speak for their group: one is enough to admit it."""


@dataclass(frozen=True)
class AcceptAll(Admission):
    """Admits every group, so that an iteration is one round of rollouts.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import AcceptAll
        >>> AcceptAll()(np.array([1.0, 1.0, 0.0]), np.array([0, 0, 1], dtype=np.uint32)).tolist()
        [True, True]
    """

    def members(
        self,
        scores: NDArray[np.floating],  # noqa: ARG002 - it asks for none
        groups: NDArray[np.uint32],
    ) -> NDArray[np.bool_]:
        """All of them."""
        return np.ones(len(groups), dtype=np.bool_)


@dataclass(frozen=True)
class DynamicSampling(Admission):
    """Replaces groups from which nothing is learned by new ones, until the batch is full or the rounds are over.

    By default a group whose scores are all equal is rejected: its group-relative advantages are zero (DAPO,
    arXiv:2503.14476). Other bands have their sources at `Band`; `weight.GroupFilter` holds one after the advantages
    are made. A group without a score is always rejected.

    Args:
        band: what the scores of an admitted group are like. A group with one score is admitted by default, as in
            DAPO's public code.
        max_rounds: rounds of rollouts in one iteration.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import Band, DynamicSampling
        >>> groups = np.array([0, 0, 1, 1, 2, 2], dtype=np.uint32)
        >>> scores = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.9])
        >>> DynamicSampling()(scores, groups).tolist()
        [True, False, True]
        >>> DynamicSampling(Band(at_least=0.2, at_most=0.8))(scores, groups).tolist()
        [True, False, False]
    """

    band: Band = Band(accept_single=True)
    max_rounds: int = option(4, at_least=1)

    @property
    def rounds(self) -> int:
        """How many rounds of rollouts an iteration takes at most."""
        return self.max_rounds

    def members(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Those with a score whose group is in the band."""
        return self.band.holds(scores, groups)
