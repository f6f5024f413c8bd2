"""Shape scores: penalties for excess length, and noise."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


def excess_penalty(
    amounts: object,
    *,
    free: float,
    full_at: float,
    coefficient: float = 1.0,
    at_most: float | None = None,
    valid: object | None = None,
) -> NDArray[Any]:
    """Penalise amounts above a free allowance: -coefficient * min(max(amount - free, 0) / (full_at - free), at_most).

    It is 0 up to `free`, -coefficient at `full_at`, and linear beyond. DAPO's soft overlong punishment
    (arXiv:2503.14476) has free = longest - buffer and full_at = longest; a penalty for each tool call after the first
    ones has full_at = free + 1.

    Args:
        amounts: n numbers: lengths, tool calls, seconds.
        free: amount without a penalty.
        full_at: above `free`.
        coefficient: at least 0.
        at_most: the largest multiple of `coefficient`; None: any.
        valid: n booleans; rows that are False may hold anything and get 0. None: all rows are valid.

    Returns:
        `float32[n]` for float32 amounts, else `float64[n]`: at most 0, to add to a score.

    Raises:
        InvalidInputError: a valid amount is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core.operators.score_shaping import excess_penalty
        >>> excess_penalty([5, 15, 30], free=10, full_at=20, at_most=1.0).tolist()
        [0.0, -0.5, -1.0]
    """
    column = columns.numbers(amounts, "amounts")
    mask = columns.mask(valid, "valid", length=len(column), first="amounts")
    penalties = _core.reward.excess_penalty(_filled(column, "amounts", mask), free, full_at, coefficient, at_most)
    return columns.like(_blank(penalties, mask), column)


def add_noise(
    scores: object,
    *,
    seed: int,
    ids: object | None = None,
    amplitude: float = 0.05,
    kind: Literal["uniform", "normal"] = "uniform",
    valid: object | None = None,
) -> NDArray[Any]:
    """Add noise of mean 0 and standard deviation amplitude / sqrt(3) to discrete scores. ReDit, arXiv:2506.18631.

    Args:
        scores: n numbers.
        seed: at least 0; use another one in each iteration.
        ids: n integers that identify rows: `seed` and id determine the noise. None: the row number.
        amplitude: at least 0.
        kind: uniform in [-amplitude, amplitude], or normal.
        valid: n booleans; rows that are False may hold anything and get 0. None: all rows are valid.

    Returns:
        `float32[n]` for float32 scores, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core.operators.score_shaping import add_noise
        >>> bool(abs(add_noise([1.0, 0.0], seed=7) - [1.0, 0.0]).max() <= 0.05)
        True
    """
    column = columns.numbers(scores, "scores")
    mask = columns.mask(valid, "valid", length=len(column), first="scores")
    places = columns.places(ids, "ids", length=len(column), first="scores")
    noisy = _core.reward.dither(_filled(column, "scores", mask), places, seed, amplitude, kind)
    return columns.like(_blank(noisy, mask), column)


def _filled(column: NDArray[Any], name: str, mask: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Return the column with 0 in rows that are not valid."""
    numbers = columns.doubles(column, name, length=None if mask is None else len(mask))
    return numbers if mask is None else np.where(mask, numbers, 0.0)


def _blank(numbers: NDArray[np.float64], mask: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Return the numbers with 0 in rows that are not valid."""
    return numbers if mask is None else np.where(mask, numbers, 0.0)
