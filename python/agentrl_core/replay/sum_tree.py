"""Draws in proportion to priorities that change, and the weights that make up for them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


class SumTree:
    """Draws rows in proportion to priorities that change, in O(log n) a draw: prioritised replay, arXiv:1511.05952.

    Row i is drawn with P(i) = p_i^exponent / sum_j p_j^exponent. A sum is always made of the values below it, never by
    adding a difference: a tree that was updated any number of times equals one made anew, bit for bit.

    Args:
        priorities: p, above 0 and finite.
        exponent: alpha, at least 0; 0 draws uniformly.

    Raises:
        InvalidInputError: a priority is zero, negative, NaN or infinite, or their sum is too large.

    Example:
        >>> from agentrl_core.replay.sum_tree import SumTree
        >>> tree = SumTree([1.0, 3.0, 4.0])
        >>> tree.update([0], [5.0])
        >>> tree.total, tree.probabilities([0, 1]).tolist()
        (12.0, [0.4166666666666667, 0.25])
        >>> rows = tree.sample(4, key=7)
        >>> weights = tree.weights(rows, beta=0.4)
    """

    __slots__ = ("_core",)

    def __init__(self, priorities: ArrayLike, *, exponent: float = 1.0) -> None:
        self._core = _core.replay.SumTree(columns.doubles(priorities, "priorities"), exponent=exponent)

    def __len__(self) -> int:
        """How many rows there are, also those that were removed."""
        return len(self._core)

    @property
    def total(self) -> float:
        """The sum of p^exponent."""
        return self._core.total

    def update(self, rows: ArrayLike, priorities: ArrayLike) -> None:
        """Give rows other priorities; of a row that is named twice the last counts. All or nothing.

        Raises:
            InvalidInputError: no such row, or a priority that is not above 0 and finite.
        """
        self._core.update(columns.integers(rows, "rows"), columns.doubles(priorities, "priorities"))

    def remove(self, rows: ArrayLike) -> None:
        """Draw rows no more, until an update gives them a priority again.

        Raises:
            InvalidInputError: no such row.
        """
        self._core.remove(columns.integers(rows, "rows"))

    def sample(self, count: int, key: int, *, stratified: bool = True) -> NDArray[np.int64]:
        """Draw rows, with replacement, by the counter-based numbers of `key` alone.

        Args:
            count: how many.
            key: the same key gives the same rows.
            stratified: one row from each of `count` equal parts of the sum, in ascending order; else independently.

        Raises:
            InvalidInputError: no row has a priority.
        """
        return self._core.sample(count, key, stratified=stratified)

    def probabilities(self, rows: ArrayLike) -> NDArray[np.float64]:
        """P of each row; 0 of one that was removed."""
        return self._core.probabilities(columns.integers(rows, "rows"))

    def weights(
        self, rows: ArrayLike, *, beta: float, normalise: Literal["none", "drawn", "all"] = "drawn"
    ) -> NDArray[np.float64]:
        """Importance weights w = (n P)^-beta of drawn rows.

        Args:
            rows: what `sample` gave.
            beta: from 0 (all weights 1) to 1 (unbiased), or more.
            normalise: divided by nothing, by the largest of those given, or by the largest that any row could have.

        Raises:
            InvalidInputError: a row has no priority.
        """
        return self._core.weights(columns.integers(rows, "rows"), beta, normalise)
