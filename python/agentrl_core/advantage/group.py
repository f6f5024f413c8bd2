"""Advantages of trajectories over their group: group-relative (GRPO) and leave-one-out (RLOO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _columns
from agentrl_core.component import BatchComponent, Column
from agentrl_core.group.normalise import normalise

if TYPE_CHECKING:
    from agentrl_core.batch import Batch


def group_relative(
    rewards: object,
    group_ids: object,
    *,
    scale: Literal["std", "none"] = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    singleton: Literal["zero", "raw"] = "zero",
    valid: object | None = None,
) -> NDArray[Any]:
    """How many standard deviations each reward lies above the mean of its group.

    A_i = (R_i - mean(R of the group)) / (std(R of the group) + eps), or the numerator alone with `scale="none"`
    (Dr. GRPO). From GRPO, arXiv:2402.03300. A group whose valid rewards are all equal gives exactly 0.

    Args:
        rewards: n numbers: NumPy, Arrow, Polars, torch on the CPU, or a list.
        group_ids: n group ids: whole numbers or strings, in any order.
        scale: `std` or `none`.
        ddof: the variance divides by (count - ddof); 0 or 1.
        eps: added to the standard deviation.
        singleton: a group of one valid row gets 0 (`zero`), or is treated as mean 0 and std 1 (`raw`, verl's rule).
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 rewards, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid reward is not finite, or an option is not possible.

    Example:
        >>> from agentrl_core import advantage
        >>> advantage.group_relative([1.0, 0.0, 5.0, 5.0], ["a", "a", "b", "b"], eps=0.0).round(4).tolist()
        [0.7071, -0.7071, 0.0, 0.0]
    """
    return _named(rewards, group_ids, valid, scale=scale, ddof=ddof, eps=eps, singleton=singleton)


def leave_one_out(
    rewards: object,
    group_ids: object,
    *,
    singleton: Literal["zero", "raw"] = "zero",
    valid: object | None = None,
) -> NDArray[Any]:
    """How much each reward lies above the mean of the others in its group.

    A_i = R_i - mean(R_j of the group, j != i) = n / (n - 1) * (R_i - mean(R of the group)).
    From RLOO, arXiv:2402.14740.

    Args:
        rewards: n numbers: NumPy, Arrow, Polars, torch on the CPU, or a list.
        group_ids: n group ids: whole numbers or strings, in any order.
        singleton: a group of one valid row gets 0 (`zero`), or its reward as it is (`raw`, verl's rule).
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 rewards, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or a valid reward is not finite.

    Example:
        >>> from agentrl_core import advantage
        >>> advantage.leave_one_out([3.0, 0.0, 0.0], [7, 7, 7]).tolist()
        [3.0, -1.5, -1.5]
    """
    return _named(rewards, group_ids, valid, center="leave_one_out", scale="none", singleton=singleton)


def _named(rewards: object, group_ids: object, valid: object | None, **options: Any) -> NDArray[Any]:
    """`group.normalise`, with the names that these two functions give their arguments."""
    scores = _columns.numbers(rewards, "rewards")
    groups = _columns.keys(group_ids, "group_ids", length=len(scores))
    return normalise(scores, groups, valid=valid, **options)


@dataclass(frozen=True)
class _OfDraws(BatchComponent):
    """What the two components below share: from the scores of draws to the advantage of draws."""

    phase: ClassVar[str] = "advantage"

    @property
    def needs(self) -> tuple[Column, ...]:
        """Score and group of each draw."""
        return (("draw", "score"), ("draw", "group_id"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)


@dataclass(frozen=True)
class GroupRelative(_OfDraws):
    """`group_relative` on the scores of a batch's draws; draws without a finite score neither vote nor get a value.

    Args:
        scale: `std` or `none`.
        ddof: the variance divides by (count - ddof); 0 or 1.
        eps: added to the standard deviation, at least 0.
        singleton: what a group of one gets: `zero` or `raw`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import GroupRelative
        >>> GroupRelative(scale="none").makes
        (('draw', 'advantage'),)
    """

    scale: Literal["std", "none"] = "std"
    ddof: int = 1
    eps: float = 1e-6
    singleton: Literal["zero", "raw"] = "zero"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.ddof in (0, 1), "ddof", "give 0 or 1")
        self.require(self.eps >= 0.0, "eps", "give a number of at least 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        scores = batch.column("score", "draw")
        advantage = normalise(
            scores,
            batch.keys("group_id", "draw"),
            scale=self.scale,
            ddof=self.ddof,
            eps=self.eps,
            singleton=self.singleton,
            valid=np.isfinite(scores),
        )
        return batch.with_columns("draw", advantage=advantage)


@dataclass(frozen=True)
class LeaveOneOut(_OfDraws):
    """`leave_one_out` on the scores of a batch's draws; draws without a finite score neither vote nor get a value.

    Args:
        singleton: what a group of one gets: `zero` or `raw`.

    Example:
        >>> from agentrl_core.advantage import LeaveOneOut
        >>> LeaveOneOut()
        LeaveOneOut(singleton='zero')
    """

    singleton: Literal["zero", "raw"] = "zero"

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        scores = batch.column("score", "draw")
        advantage = normalise(
            scores,
            batch.keys("group_id", "draw"),
            center="leave_one_out",
            scale="none",
            singleton=self.singleton,
            valid=np.isfinite(scores),
        )
        return batch.with_columns("draw", advantage=advantage)
