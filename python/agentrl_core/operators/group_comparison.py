"""Compare the scores of a group: best of k, lead of the best, agreement of ranks, win rates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


def max_at_k(
    rewards: object,
    group_ids: object,
    k: int,
    *,
    leave_one_out: bool = False,
    ratio_excess: object | None = None,
    valid: object | None = None,
) -> NDArray[Any]:
    """Transform rewards so that the policy gradient is unbiased for the best of k rows (pass@k for rewards 0 and 1).

    With the n rewards of a group ascending: r'_i = [C(i-1, k-1) r_i + sum_{j>i} C(j-2, k-2) r_j] / C(n, k). With
    `leave_one_out`, k/n * max@(k-1) of the others is subtracted (PKPO, arXiv:2505.15201). With `ratio_excess`, every
    subset counts 1 + sum of its excesses, the first-order correction of arXiv:2510.23393. Then any group baseline.

    Args:
        rewards: n numbers.
        group_ids: n group ids.
        k: at least 1.
        leave_one_out: lower variance, same expectation; on-policy only.
        ratio_excess: n numbers, the sequence ratio pi/mu minus 1; None: on-policy.
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 rewards, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid reward is not finite, or a group has fewer than k valid rows.

    Example:
        >>> from agentrl_core.operators.group_comparison import max_at_k
        >>> max_at_k([0.0, 1.0, 2.0, 3.0], ["a"] * 4, 2).round(4).tolist()
        [1.0, 1.0, 1.1667, 1.5]
    """
    scores = columns.numbers(rewards, "rewards")
    count = len(scores)
    shares = _core.reward.max_at_k(
        columns.doubles(scores, "rewards"),
        columns.keys(group_ids, "group_ids", length=count, first="rewards"),
        k=k,
        leave_one_out=leave_one_out,
        ratio_excess=columns.optional_numbers(ratio_excess, "ratio_excess", length=count, first="rewards"),
        valid=columns.mask(valid, "valid", length=count, first="rewards"),
    )
    return columns.like(shares, scores)


def top_gap(rewards: object, group_ids: object, *, valid: object | None = None) -> NDArray[Any]:
    """Give the best row of each group its lead over the second best; other rows, and single rows, get 0.

    From arXiv:2503.19595: verl's `grpo_passk` before its division by the standard deviation.

    Args:
        rewards: n numbers.
        group_ids: n group ids.
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 rewards, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or a valid reward is not finite.

    Example:
        >>> from agentrl_core.operators.group_comparison import top_gap
        >>> top_gap([1.0, 4.0, 3.0], ["a", "a", "a"]).tolist()
        [0.0, 1.0, 0.0]
    """
    scores = columns.numbers(rewards, "rewards")
    gaps = _core.reward.top_gap(
        columns.doubles(scores, "rewards"),
        columns.keys(group_ids, "group_ids", length=len(scores), first="rewards"),
        valid=columns.mask(valid, "valid", length=len(scores), first="rewards"),
    )
    return columns.like(gaps, scores)


def rank_agreement(scores: object, truths: object, offsets: object) -> NDArray[np.float64]:
    """Kendall's tau between each row's scores and the true order, from -1 to 1.

    tau = (concordant pairs - discordant pairs) / pairs, over the pairs that `truths` orders; equal scores are neither.
    A row of two is 1 or 0: concordant or not. The reward of a referee in URPO, arXiv:2507.17515.

    Args:
        scores: the given scores, row after row; a row with NaN (unreadable) gets 0.
        truths: the same number of values, larger for better items.
        offsets: n + 1 whole numbers; the scores of row i are `scores[offsets[i]:offsets[i + 1]]`.

    Returns:
        `float64[n]`; 0 for a row without an ordered pair.

    Raises:
        InvalidInputError: lengths differ, offsets do not cover the scores, a truth is not finite or a score infinite.

    Example:
        >>> from agentrl_core.operators.group_comparison import rank_agreement
        >>> rank_agreement([9.0, 5.0, 7.0, 1.0, 2.0], [3.0, 2.0, 1.0, 2.0, 1.0], [0, 3, 5]).round(4).tolist()
        [0.3333, 0.0]
    """
    numbers = columns.doubles(scores, "scores")
    return _core.reward.rank_agreement(
        numbers,
        columns.doubles(truths, "truths", length=len(numbers), first="scores"),
        columns.integers(offsets, "offsets"),
    )


def win_rates(first: object, second: object, probability: object, count: int) -> NDArray[np.float64]:
    """Mean win probability of each row over its comparisons; 0.5 for a row without any.

    From SPO, arXiv:2401.04056: in comparison c, row first[c] beats row second[c] with probability[c].

    Args:
        first: c indices of rows.
        second: c indices of other rows.
        probability: c numbers from 0 to 1; 0.5 is a tie.
        count: number of rows.

    Returns:
        `float64[count]`.

    Raises:
        InvalidInputError: lengths differ, a row does not exist or is compared with itself, or a probability is out of
            range.

    Example:
        >>> from agentrl_core.operators.group_comparison import win_rates
        >>> win_rates([0, 0], [1, 2], [1.0, 0.5], 3).tolist()
        [0.75, 0.0, 0.5]
    """
    winners = columns.integers(first, "first")
    losers = columns.integers(second, "second", length=len(winners), first="first")
    return _core.reward.win_rates(
        winners,
        losers,
        columns.doubles(probability, "probability", length=len(winners), first="first"),
        count,
    )
