"""Pairs of draws: a loss on pairs needs both draws in one update and one pack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.rows import Rows, sum_rows
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


def pairs_of(batch: Batch, valid: NDArray[np.bool_], *, preferred: bool = False) -> NDArray[np.int64]:
    """Return the number of each draw's pair, `int64[draws]`; -1 for a draw without a pair.

    A pair is two draws with the same number in the column `pair` (negative: no pair); without that column the groups
    are the pairs. A pair with an invalid draw does not count.

    Args:
        batch: the batch.
        valid: `bool[draws]`, draws that count.
        preferred: whether a pair whose draws have the same advantage does not count either.

    Raises:
        InvalidInputError: more than two draws have the same number, or the column does not hold integers.
    """
    has_pairs = batch.has("pair", "draw")
    ids = np.asarray(batch.column("pair", "draw") if has_pairs else batch.keys("group_id", "draw"))
    remedy = (
        "call batch.with_columns('draw', pair=...) with the same integer for both draws of a pair, and -1 for draws "
        "without a pair"
    )
    if not np.issubdtype(ids.dtype, np.integer):
        raise InvalidInputError(f"column 'pair' has dtype {ids.dtype} instead of integers; {remedy}")
    ids = ids.astype(np.int64)
    known, place, count = np.unique(ids, return_inverse=True, return_counts=True)
    large = np.flatnonzero((count > 2) & (known >= 0))
    if len(large):
        name = "pair" if has_pairs else "group"
        raise InvalidInputError(
            f"the loss needs pairs, but {name} {known[large[0]]} has {count[large[0]]} draws; {remedy}"
        )
    has_two = np.bincount(place, weights=valid, minlength=len(known)) == 2
    in_pair = has_two[place] & valid & (ids >= 0)
    if preferred and batch.has("advantage", "token"):
        in_pair &= ~_ties(_advantages(batch), np.where(in_pair, place, -1))
    return np.where(in_pair, place, -1)


def _advantages(batch: Batch) -> NDArray[np.float64]:
    """Return the mean advantage over the trainable tokens of each draw; 0 for a draw without trainable tokens."""
    rows = Rows(batch, "token")
    trained = rows.flags("trainable")
    total = sum_rows(np.where(trained, rows.values("advantage"), 0.0), rows.draws, batch.num_draws)
    return np.asarray(total / np.maximum(sum_rows(trained, rows.draws, batch.num_draws), 1.0))


def _ties(values: NDArray[np.float64], pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the draws of pairs whose two values are equal up to rounding; -1 is no pair."""
    members = np.flatnonzero(pairs >= 0)
    first, second = members[np.argsort(pairs[members], kind="stable")].reshape(-1, 2).T
    same = np.isclose(values[first], values[second], rtol=1e-6, atol=0.0)
    ties = np.zeros(len(values), np.bool_)
    ties[first] = ties[second] = same
    return ties
