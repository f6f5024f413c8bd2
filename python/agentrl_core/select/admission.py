"""Which finished groups enter the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Column, Component, draw, option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.select.band import Band

Rejected = Literal["replace", "regenerate", "extend"]
"""What a rejected group becomes: one of another task, one of the same task, or itself with more members."""


@dataclass(frozen=True)
class Admission(Component, ABC):
    """Base of the components that accept or reject finished groups.

    In place of rejected groups the collector rolls out what `becomes` says, at most `rounds` rounds in one iteration.
    """

    phase: ClassVar[str] = "admit"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"))

    @property
    def rounds(self) -> int:
        """How many rounds of rollouts an iteration may take to fill its batch."""
        return 1

    def becomes(self, tried: int) -> Rejected:  # noqa: ARG002 - its place goes to another task
        """What a rejected group becomes whose task was tried again so often before."""
        return "replace"

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
    """Rolls out more in place of groups from which nothing is learned, until the batch is full or the rounds are over.

    By default a group whose scores are all equal is rejected: its group-relative advantages are zero (DAPO,
    arXiv:2503.14476). Other bands have their sources at `Band`; `weight.GroupFilter` holds one after the advantages
    are made. A group without a score is always rejected.

    What is rejected is kept, and drawn by nobody; a task that is tried again counts all its rollouts.

    Args:
        band: what the scores of an admitted group are like. A group with one score is admitted by default, as in
            DAPO's public code.
        max_rounds: rounds of rollouts in one iteration.
        rejected: what a rejected group becomes in the next round: another task takes its place (`replace`), its own
            task is rolled out anew (`regenerate`), or as many members as were asked for at first join it, and it is
            judged with all of them (`extend`: a task is sampled until its group has both outcomes).
        tries: how often a task is tried again, by `regenerate` or `extend`, before another takes its place.

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
    rejected: Rejected = "replace"
    tries: int = option(1, at_least=1)

    @property
    def rounds(self) -> int:
        """How many rounds of rollouts an iteration takes at most."""
        return self.max_rounds

    def becomes(self, tried: int) -> Rejected:
        """What a rejected group becomes whose task was tried again so often before."""
        return self.rejected if tried < self.tries else "replace"

    def members(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Those with a score whose group is in the band."""
        return self.band.holds(scores, groups)
