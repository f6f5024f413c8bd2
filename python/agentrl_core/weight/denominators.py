"""Denominators as weights: with them a loss is a plain sum over tokens, however rows were split into packs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _columns
from agentrl_core.exceptions import InvalidInputError


def token_mean(lengths: object, *, valid: object | None = None) -> NDArray[np.float64]:
    """Every token counts the same: w = 1 / (tokens of all valid rows). DAPO's loss, arXiv:2503.14476.

    Args:
        lengths: n whole numbers, the trained tokens of each row: NumPy, Arrow, Polars, torch on the CPU, or a list.
        valid: n booleans; the tokens of other rows get 0 and do not count. None: all rows are valid.

    Returns:
        `float64[sum(lengths)]`, the weights of the tokens, rows one after the other; they sum to 1.

    Raises:
        InvalidInputError: a length is negative or no whole number, or `valid` has another length.

    Example:
        >>> from agentrl_core import weight
        >>> weight.token_mean([1, 3]).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    counts, trained = _rows(lengths, valid)
    return np.repeat(trained / max(int(counts[trained].sum()), 1), counts)


def sequence_mean(lengths: object, *, valid: object | None = None) -> NDArray[np.float64]:
    """Every row counts the same: w = 1 / (tokens of its row) / (valid rows with tokens). GRPO's loss, arXiv:2402.03300.

    Args:
        lengths: as for `token_mean`.
        valid: as for `token_mean`.

    Returns:
        `float64[sum(lengths)]`; the weights sum to 1.

    Raises:
        InvalidInputError: as for `token_mean`.

    Example:
        >>> from agentrl_core import weight
        >>> weight.sequence_mean([1, 2, 0]).tolist()
        [0.5, 0.25, 0.25]
    """
    counts, trained = _rows(lengths, valid)
    return np.repeat(trained / np.maximum(counts, 1) / max(int(trained.sum()), 1), counts)


def constant(lengths: object, constant: float, *, valid: object | None = None) -> NDArray[np.float64]:
    """A token counts the same however long its row: w = 1 / constant / (valid rows with tokens).

    From Dr. GRPO, arXiv:2503.20783.

    Args:
        lengths: as for `token_mean`.
        constant: customarily the longest response allowed; above 0.
        valid: as for `token_mean`.

    Returns:
        `float64[sum(lengths)]`.

    Raises:
        InvalidInputError: as for `token_mean`, or `constant` is not above 0.

    Example:
        >>> from agentrl_core import weight
        >>> weight.constant([1, 2], 10.0).tolist()
        [0.05, 0.05, 0.05]
    """
    if not constant > 0:
        raise InvalidInputError(f"constant={constant} is no denominator; give a number above 0")
    counts, trained = _rows(lengths, valid)
    return np.repeat(trained / constant / max(int(trained.sum()), 1), counts)


def _rows(lengths: object, valid: object | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The lengths, and which rows are valid and have tokens."""
    counts = _columns.integers(lengths, "lengths")
    if len(counts) and counts.min() < 0:
        row = int(counts.argmin())
        raise InvalidInputError(
            f"lengths[{row}]={counts[row]} is negative; give the number of trained tokens of each row"
        )
    mask = _columns.mask(valid, "valid", length=len(counts))
    return counts, (counts > 0) if mask is None else (counts > 0) & mask
