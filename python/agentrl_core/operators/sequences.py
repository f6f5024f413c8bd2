"""Rows of tokens: means over windows, conflicting tokens, and the similarity of two sequences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns

__all__ = ["ConflictMarks", "Likeness", "conflict_tokens", "likeness", "window_means"]


class ConflictMarks(NamedTuple):
    """Tokens that a group rewards in one row and punishes in another.

    Attributes:
        prefix: `bool[n]`, conflicting tokens in the unbroken run from the start of each row.
        suffix: `bool[n]`, conflicting tokens in the unbroken run up to the end of each row.
    """

    prefix: NDArray[np.bool_]
    suffix: NDArray[np.bool_]


class Likeness(NamedTuple):
    """Similarity of two token sequences.

    Attributes:
        edits: the edit distance (Levenshtein).
        end: length of the common suffix.
        common: length of the longest common subsequence.
    """

    edits: int
    end: int
    common: int


def window_means(values: object, offsets: object, width: int) -> NDArray[np.float64]:
    """Return the mean of each value and the `width - 1` values after it in its row. ARES, arXiv:2510.08457.

    Near the end of a row there are fewer values.

    Args:
        values: n numbers, row after row.
        offsets: m + 1 whole numbers; row i is `values[offsets[i]:offsets[i + 1]]`.
        width: at least 1.

    Returns:
        `float64[n]`.

    Raises:
        InvalidInputError: a value is not finite, offsets do not fit, or `width` is below 1.

    Example:
        >>> from agentrl_core.operators.sequences import window_means
        >>> window_means([9.0, 1.0, 3.0, 8.0, 9.0], [0, 4, 5], 2).tolist()
        [5.0, 2.0, 5.5, 8.0, 9.0]
    """
    return _core.reward.window_means(columns.doubles(values, "values"), columns.integers(offsets, "offsets"), width)


def conflict_tokens(tokens: object, offsets: object, group_ids: object, advantages: object) -> ConflictMarks:
    """Mark leading and trailing tokens that a group both rewards and punishes at one position. GTPO, arXiv:2508.03772.

    A token conflicts if the group has a row with positive and a row with negative advantage that both have its id at
    its position. Positions are counted from the start of the rows, and separately from their end; in each row the marks
    stop at the first token without a conflict. Rows with advantage 0 are ignored.

    Args:
        tokens: n token ids, row after row.
        offsets: m + 1 whole numbers; row i is `tokens[offsets[i]:offsets[i + 1]]`.
        group_ids: m group ids.
        advantages: m numbers.

    Raises:
        InvalidInputError: lengths differ, or an advantage is not finite.

    Example:
        >>> from agentrl_core.operators.sequences import conflict_tokens
        >>> found = conflict_tokens([5, 6, 7, 9, 5, 8, 9], [0, 4, 7], ["a", "a"], [1.0, -1.0])
        >>> found.prefix.tolist(), found.suffix.nonzero()[0].tolist()
        ([True, False, False, False, True, False, False], [3, 6])
    """
    numbers = columns.doubles(advantages, "advantages")
    groups = columns.groups(group_ids, "group_ids", length=len(numbers), first="advantages")
    ids = columns.integers(tokens, "tokens").astype(np.int32)
    return ConflictMarks(*_core.weight.conflict_tokens(ids, columns.integers(offsets, "offsets"), groups, numbers))


def likeness(first: object, second: object) -> Likeness:
    """Compare two token sequences: edit distance, common suffix, common subsequence. LATR, arXiv:2510.24302.

    Args:
        first: token ids.
        second: token ids.

    Example:
        >>> from agentrl_core.operators.sequences import likeness
        >>> likeness([1, 2, 3, 4], [1, 9, 3, 4])
        Likeness(edits=1, end=2, common=3)
    """
    one, other = (columns.integers(ids, name).astype(np.int32) for ids, name in ((first, "first"), (second, "second")))
    return Likeness(*_core.rollout.likeness(one, other))
