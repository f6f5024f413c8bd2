"""Tokens that good and bad rows of a group share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


def conflict_tokens(
    tokens: object, offsets: object, group_ids: object, advantages: object
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tokens that good and bad rows of a group share at the same place, at either end. GTPO, arXiv:2508.03772.

    Args:
        tokens: token ids, row after row.
        offsets: n + 1 whole numbers; row i is `tokens[offsets[i]:offsets[i + 1]]`.
        group_ids: n group ids.
        advantages: n numbers; rows with 0 neither make a conflict nor have one.

    Returns:
        `bool[len(tokens)]`, the runs from the start of each row, and `bool[len(tokens)]`, those that reach its end.

    Raises:
        InvalidInputError: lengths differ, a token id does not fit 32 bits, or an advantage is not finite.

    Example:
        >>> from agentrl_core import weight
        >>> first, last = weight.conflict_tokens([5, 6, 9, 5, 8, 9], [0, 3, 6], [0, 0], [1.0, -1.0])
        >>> first.tolist(), last.tolist()
        ([True, False, False, True, False, False], [False, False, True, False, False, True])
    """
    bounds = columns.integers(offsets, "offsets")
    rows = max(len(bounds) - 1, 0)
    return _core.weight_conflict_tokens(
        columns.keys(tokens, "tokens").astype(np.int32),
        bounds,
        columns.keys(group_ids, "group_ids", length=rows),
        columns.doubles(advantages, "advantages", length=rows),
    )
