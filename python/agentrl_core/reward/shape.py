"""Scores row by row: sums and gates of components, penalties for excess, tiers, noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


def weighted_sum(components: Sequence[object], weights: object, *, valid: object | None = None) -> NDArray[Any]:
    """sum_k weights[k] * components[k].

    Args:
        components: K columns of n numbers each.
        weights: K numbers.
        valid: n booleans; rows that are False may hold anything and get 0. None: all rows are valid.

    Returns:
        `float32[n]` if the first component is float32, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, there is no component, or a valid number is not finite.

    Example:
        >>> from agentrl_core import reward
        >>> reward.weighted_sum([[1.0, 0.0], [1.0, 1.0]], [0.9, 0.1]).tolist()
        [1.0, 0.1]
    """
    given = [columns.numbers(column, f"components[{index}]") for index, column in enumerate(components)]
    mask = columns.mask(valid, "valid", length=len(given[0]) if given else 0)
    made = _core.reward_weighted_sum(
        [_filled(column, f"components[{index}]", mask) for index, column in enumerate(given)],
        columns.doubles(weights, "weights"),
    )
    return columns.like(_blank(made, mask), given[0])


def gate(scores: object, passed: object, *, failed: float = 0.0, valid: object | None = None) -> NDArray[Any]:
    """The score where a row passed, `failed` elsewhere: format gates, vetoes, conditional rewards.

    Args:
        scores: n numbers.
        passed: n booleans.
        failed: what a row gets that did not pass.
        valid: n booleans; rows that are False may hold anything and get 0. None: all rows are valid.

    Returns:
        `float32[n]` for float32 scores, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or a valid score that passed is not finite.

    Example:
        >>> from agentrl_core import reward
        >>> reward.gate([1.0, 1.0], [True, False], failed=-1.0).tolist()
        [1.0, -1.0]
    """
    given = columns.numbers(scores, "scores")
    mask = columns.mask(valid, "valid", length=len(given))
    through = columns.flags(passed, "passed", length=len(given))
    made = _core.reward_gate(_filled(given, "scores", mask), through, failed)
    return columns.like(_blank(made, mask), given)


def excess_penalty(
    amounts: object,
    *,
    free: float,
    limit: float,
    weight: float = 1.0,
    cap: float | None = None,
    valid: object | None = None,
) -> NDArray[Any]:
    """-weight * min(max(amount - free, 0) / (limit - free), cap): 0 up to `free`, -weight at `limit`, linear beyond.

    DAPO's soft overlong punishment (arXiv:2503.14476) has free = longest - buffer and limit = longest; a price for each
    tool call after the first ones has limit = free + 1.

    Args:
        amounts: n numbers: lengths, tool calls, seconds.
        free: what costs nothing.
        limit: above `free`.
        weight: at least 0.
        cap: the largest multiple of `weight`; None: no limit.
        valid: n booleans; rows that are False may hold anything and get 0. None: all rows are valid.

    Returns:
        `float32[n]` for float32 amounts, else `float64[n]`: at most 0, to be added to a score.

    Raises:
        InvalidInputError: a valid amount is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core import reward
        >>> reward.excess_penalty([5, 15, 30], free=10, limit=20, cap=1.0).tolist()
        [0.0, -0.5, -1.0]
    """
    given = columns.numbers(amounts, "amounts")
    mask = columns.mask(valid, "valid", length=len(given))
    made = _core.reward_excess_penalty(_filled(given, "amounts", mask), free, limit, weight, cap)
    return columns.like(_blank(made, mask), given)


def tiers(qualities: object, count: int, *, valid: object | None = None) -> NDArray[Any]:
    """ceil(count * x) / count: the tier of a quality, each closed above; 0 stays 0. From SSL's tiered rewards.

    Args:
        qualities: n numbers from 0 to 1.
        count: number of tiers, at least 1.
        valid: n booleans; rows that are False may hold anything and get 0. None: all rows are valid.

    Returns:
        `float32[n]` for float32 qualities, else `float64[n]`.

    Raises:
        InvalidInputError: a valid quality is out of range, or `count` is 0.

    Example:
        >>> from agentrl_core import reward
        >>> reward.tiers([0.0, 0.1, 0.25, 0.26, 1.0], 4).tolist()
        [0.0, 0.25, 0.25, 0.5, 1.0]
    """
    given = columns.numbers(qualities, "qualities")
    mask = columns.mask(valid, "valid", length=len(given))
    return columns.like(_blank(_core.reward_tiers(_filled(given, "qualities", mask), count), mask), given)


def dither(
    scores: object,
    *,
    seed: int,
    ids: object | None = None,
    amplitude: float = 0.05,
    law: Literal["uniform", "normal"] = "uniform",
    valid: object | None = None,
) -> NDArray[Any]:
    """Add noise of mean 0 and standard deviation amplitude / sqrt(3) to discrete scores. ReDit, arXiv:2506.18631.

    Args:
        scores: n numbers.
        seed: at least 0; use another one in each iteration.
        ids: n whole numbers that name the rows: with `seed`, they alone decide the noise. None: the row's place.
        amplitude: at least 0.
        law: uniform in [-amplitude, amplitude], or normal.
        valid: n booleans; rows that are False may hold anything and get 0. None: all rows are valid.

    Returns:
        `float32[n]` for float32 scores, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core import reward
        >>> bool(abs(reward.dither([1.0, 0.0], seed=7) - [1.0, 0.0]).max() <= 0.05)
        True
    """
    given = columns.numbers(scores, "scores")
    mask = columns.mask(valid, "valid", length=len(given))
    places = columns.places(ids, "ids", length=len(given))
    made = _core.reward_dither(_filled(given, "scores", mask), places, seed, amplitude, law)
    return columns.like(_blank(made, mask), given)


def _filled(column: NDArray[Any], name: str, mask: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """The column with 0 in rows that are not valid."""
    numbers = columns.doubles(column, name, length=None if mask is None else len(mask))
    return numbers if mask is None else np.where(mask, numbers, 0.0)


def _blank(made: NDArray[np.float64], mask: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """What was made, with 0 in rows that are not valid."""
    return made if mask is None else np.where(mask, made, 0.0)
