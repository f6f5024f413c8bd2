"""Sampling in proportion to changing priorities, with importance weights."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


class SumTree:
    """Sample rows in proportion to changing priorities, O(log n) per draw: prioritised replay, arXiv:1511.05952.

    Row i is drawn with P(i) = p_i^exponent / sum_j p_j^exponent. Each sum is recomputed from the values below it, never
    by adding a difference. So an updated tree equals a new one bit for bit.

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
        """Number of rows, including removed ones."""
        return len(self._core)

    @property
    def total(self) -> float:
        """The sum of p^exponent."""
        return self._core.total

    def update(self, rows: ArrayLike, priorities: ArrayLike) -> None:
        """Change the priorities of rows; for a row given twice the last one counts. On errors nothing changes.

        Raises:
            InvalidInputError: a row does not exist, or a priority is not above 0 and finite.
        """
        self._core.update(columns.integers(rows, "rows"), columns.doubles(priorities, "priorities"))

    def remove(self, rows: ArrayLike) -> None:
        """Exclude rows, until an update gives them a priority again.

        Raises:
            InvalidInputError: a row does not exist.
        """
        self._core.remove(columns.integers(rows, "rows"))

    def sample(self, count: int, key: int, *, stratified: bool = True) -> NDArray[np.int64]:
        """Sample `count` rows with replacement, with random numbers that depend on `key` alone.

        Args:
            count: number of rows.
            key: the same key gives the same rows.
            stratified: whether to draw one row from each of `count` equal parts of the sum, in ascending order;
                otherwise independently.

        Raises:
            InvalidInputError: no row has a priority.
        """
        return self._core.sample(count, key, stratified=stratified)

    def probabilities(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Return P of each row; 0 for removed rows."""
        return self._core.probabilities(columns.integers(rows, "rows"))

    def weights(
        self, rows: ArrayLike, *, beta: float, normalise: Literal["none", "drawn", "all"] = "drawn"
    ) -> NDArray[np.float64]:
        """Return importance weights w = (n P)^-beta of drawn rows, where n counts the rows with a priority.

        Args:
            rows: output of `sample`.
            beta: from 0 (all weights 1) to 1 (unbiased), or more.
            normalise: divisor: none, the largest weight of these rows, or the largest possible weight of any row.

        Raises:
            InvalidInputError: a row has no priority.
        """
        return self._core.weights(columns.integers(rows, "rows"), beta, normalise)
