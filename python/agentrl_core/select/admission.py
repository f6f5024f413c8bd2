"""Admission of finished groups to the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Column, Component, column_name, draw, option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.select.success_band import Band

Rejected = Literal["replace", "regenerate", "extend"]
"""Replacement of a rejected group: another task, the same task again, or the same group with more members."""


@dataclass(frozen=True)
class Admission(Component, ABC):
    """Base class of components that accept or reject finished groups.

    The collector replaces rejected groups as `becomes` returns, in at most `rounds` rounds per iteration.
    """

    phase: ClassVar[str] = "admit"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"))

    @property
    def rounds(self) -> int:
        """Largest number of rollout rounds in an iteration."""
        return 1

    @property
    def judged(self) -> str:
        """Draw column that is passed to `__call__`; its value is NaN for a draw without a score."""
        return "score"

    def becomes(self, tried: int) -> Rejected:  # noqa: ARG002 - by default another task
        """Return what replaces a rejected group (`Rejected`), by how often its task was already retried."""
        return "replace"

    def __call__(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Accept (True) or reject (False) each group.

        Args:
            scores: one per trajectory; NaN if the trajectory is invalid.
            groups: dense group of each trajectory, 0 to k-1, in any order.

        Returns:
            `bool[k]`, one per group.

        Raises:
            InvalidInputError: the lengths differ.
        """
        if scores.shape != groups.shape or scores.ndim != 1:
            raise InvalidInputError(
                f"scores has shape {scores.shape} and groups has shape {groups.shape}; give two one-dimensional "
                "arrays, with one value for each trajectory"
            )
        admitted = np.zeros(int(groups.max()) + 1 if len(groups) else 0, dtype=np.bool_)
        admitted[groups[self.members(scores, groups)]] = True
        return admitted

    @abstractmethod
    def members(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Mark the trajectories because of which their group is admitted; one per group is enough."""


@dataclass(frozen=True)
class AcceptAll(Admission):
    """Admit every group, so that an iteration has one round of rollouts.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import AcceptAll
        >>> AcceptAll()(np.array([1.0, 1.0, 0.0]), np.array([0, 0, 1], dtype=np.uint32)).tolist()
        [True, True]
    """

    def members(
        self,
        scores: NDArray[np.floating],  # noqa: ARG002 - not read
        groups: NDArray[np.uint32],
    ) -> NDArray[np.bool_]:
        """Mark all trajectories."""
        return np.ones(len(groups), dtype=np.bool_)


@dataclass(frozen=True)
class DynamicSampling(Admission):
    """Replace groups without a learning signal, until the batch is full or `max_rounds` is reached.

    By default a group whose scores are all equal is rejected: its group-relative advantages are zero (DAPO,
    arXiv:2503.14476). `Band` lists sources of other bands; `weight.GroupFilter` applies one after the advantages. A
    group without a score is always rejected.

    Rejected groups are stored but never drawn. The statistics of a retried task count all its rollouts.

    Args:
        band: the values of an admitted group. A group with one score is admitted by default, as in DAPO's public code.
        max_rounds: rounds of rollouts in one iteration.
        rejected: replacement in the next round: another task (`replace`), new rollouts of the same task (`regenerate`),
            or more members, as many as at first, judged together with the old ones (`extend`: a task is sampled until
            its group has both outcomes).
        tries: how often `regenerate` or `extend` retry a task before another task replaces it.
        column: draw column to compare: `score`; or the environment's `reward`, if phase reward gives different scores
            to equally good rollouts. Draws without a score do not vote.

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
    column: str = column_name("score", level="draw")

    @property
    def rounds(self) -> int:
        """Largest number of rollout rounds in an iteration."""
        return self.max_rounds

    @property
    def judged(self) -> str:
        """Draw column whose values decide about a group: `column`."""
        return self.column

    def becomes(self, tried: int) -> Rejected:
        """Return what replaces a rejected group (`Rejected`), by how often its task was already retried."""
        return self.rejected if tried < self.tries else "replace"

    def members(self, scores: NDArray[np.floating], groups: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Mark trajectories with a score whose group is in the band."""
        return self.band.holds(scores, groups)
