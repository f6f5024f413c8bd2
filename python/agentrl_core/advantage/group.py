"""Advantages of trajectories over their group: group-relative (GRPO) and leave-one-out (RLOO)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns
from agentrl_core.operators.group.normalise import normalise


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
    if scale not in ("std", "none"):
        raise InvalidInputError(f'scale is {scale!r}; use "std" or "none" (group.normalise takes others too)')
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
    scores = columns.numbers(rewards, "rewards")
    groups = columns.keys(group_ids, "group_ids", length=len(scores), first="rewards")
    counted = columns.mask(valid, "valid", length=len(scores), first="rewards")
    unknown = np.flatnonzero(~np.isfinite(scores) if counted is None else counted & ~np.isfinite(scores))
    if len(unknown):
        raise InvalidInputError(
            f"rewards[{unknown[0]}] is {scores[unknown[0]]}, but must be finite; correct it, or leave the row out: "
            "valid=np.isfinite(rewards)"
        )
    return normalise(scores, groups, valid=valid, **options)
