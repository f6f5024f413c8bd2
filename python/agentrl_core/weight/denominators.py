"""Denominators as token weights, so that a loss is a plain sum over tokens for any split into packs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns


def token_mean(lengths: object, *, valid: object | None = None) -> NDArray[np.float64]:
    """Weight every token equally: w = 1 / (tokens of all valid rows). DAPO's loss, arXiv:2503.14476.

    Args:
        lengths: n whole numbers, the trained tokens of each row: NumPy, Arrow, Polars, torch on the CPU, or a list.
        valid: n booleans; tokens of rows that are False get 0 and do not count. None: all rows are valid.

    Returns:
        `float64[sum(lengths)]`, the weights of the tokens, rows one after the other; they sum to 1.

    Raises:
        InvalidInputError: a length is negative or not an integer, or `valid` has another length.

    Example:
        >>> from agentrl_core.weight.denominators import token_mean
        >>> token_mean([1, 3]).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    return _weights(lengths, valid)


def sequence_mean(
    lengths: object, *, rollout_ids: object | None = None, valid: object | None = None
) -> NDArray[np.float64]:
    """Weight every row equally: w = 1 / (tokens of its row) / (valid rows with tokens). GRPO's loss, arXiv:2402.03300.

    With `rollout_ids`, every rollout counts equally, even if it is split into several rows.

    Args:
        lengths: as for `token_mean`.
        rollout_ids: n ids; rows of the same rollout count as one. None: every row is a rollout.
        valid: as for `token_mean`.

    Returns:
        `float64[sum(lengths)]`; the weights sum to 1.

    Raises:
        InvalidInputError: as for `token_mean`.

    Example:
        >>> from agentrl_core.weight.denominators import sequence_mean
        >>> sequence_mean([1, 2, 0]).tolist()
        [0.5, 0.25, 0.25]
        >>> sequence_mean([1, 1, 2], rollout_ids=["a", "a", "b"]).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    return _weights(lengths, valid, ("rollout_ids", rollout_ids))


def turn_mean(lengths: object, trajectory_ids: object, *, valid: object | None = None) -> NDArray[np.float64]:
    """Weight trajectories equally, and their turns (rows) equally: w = 1 / tokens of the turn / turns / trajectories.

    Args:
        lengths: n whole numbers, the trained tokens of each turn.
        trajectory_ids: n ids of the trajectories that the turns belong to.
        valid: as for `token_mean`, for turns.

    Returns:
        `float64[sum(lengths)]`; the weights sum to 1.

    Raises:
        InvalidInputError: as for `token_mean`.

    Example:
        >>> from agentrl_core.weight.denominators import turn_mean
        >>> turn_mean([1, 2, 1], ["a", "a", "b"]).tolist()
        [0.25, 0.125, 0.125, 0.5]
    """
    if trajectory_ids is None:
        raise InvalidInputError("trajectory_ids is None; give the trajectory of each turn")
    return _weights(lengths, valid, ("turns", None), ("trajectory_ids", trajectory_ids))


def constant_denominator(
    lengths: object, constant: float, *, rollout_ids: object | None = None, valid: object | None = None
) -> NDArray[np.float64]:
    """Weight tokens independently of row length: w = 1 / constant / (valid rows with tokens).

    From Dr. GRPO, arXiv:2503.20783.

    Args:
        lengths: as for `token_mean`.
        constant: usually the longest allowed response; above 0.
        rollout_ids: as for `sequence_mean`.
        valid: as for `token_mean`.

    Returns:
        `float64[sum(lengths)]`.

    Raises:
        InvalidInputError: as for `token_mean`, or `constant` is not above 0.

    Example:
        >>> from agentrl_core.weight.denominators import constant_denominator
        >>> constant_denominator([1, 2], 10.0).tolist()
        [0.05, 0.05, 0.05]
    """
    return _weights(lengths, valid, ("rollout_ids", rollout_ids), constant=constant)


def _weights(
    lengths: object, valid: object | None, *units: tuple[str, object | None], constant: float | None = None
) -> NDArray[np.float64]:
    """Return token weights with which units count equally, level by level, such as turns and then trajectories.

    Units are given by name and ids, smallest first; None as ids means that each row is a unit.
    """
    counts = columns.integers(lengths, "lengths")
    rows = len(counts)
    return _core.weight.weights_of_rows(
        counts,
        [None if ids is None else columns.keys(ids, name, length=rows, first="lengths") for name, ids in units],
        constant,
        columns.mask(valid, "valid", length=rows, first="lengths"),
    )


def share_weights(
    step_ids: object, draw_ids: object, *, shared: str = "each", valid: object | None = None
) -> NDArray[np.float64]:
    """Return how much a step counts in each draw that contains it; branches share the steps before their fork.

    `each`: 1 in every draw. `split`: 1 / (number of valid draws that contain it). `owner`: 1 in the first valid draw
    and 0 in the others. Use the shares as weights of statistics and as factors of loss weights.

    Args:
        step_ids: n ids, equal for rows of the same physical step.
        draw_ids: n ids of the draws of the rows; rows of a draw are contiguous.
        shared: see above.
        valid: n booleans; rows that are False get 0. A draw is valid if any of its rows is. None: all are.

    Returns:
        `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or `shared` is unknown.

    Example:
        >>> from agentrl_core.weight.denominators import share_weights
        >>> share_weights(["s", "t", "s", "u"], [0, 0, 1, 1], shared="split").tolist()
        [0.5, 1.0, 0.5, 1.0]
    """
    steps = columns.keys(step_ids, "step_ids")
    draws = columns.keys(draw_ids, "draw_ids", length=len(steps), first="step_ids")
    mask = columns.mask(valid, "valid", length=len(steps), first="step_ids")
    if mask is None:
        return _core.weight.shares(steps, draws, np.ones(len(steps), np.bool_), shared)
    voters = np.zeros(len(steps), np.bool_)
    np.logical_or.at(voters, draws, mask)
    return np.where(mask, _core.weight.shares(steps, draws, voters, shared), 0.0)
