"""Choose one arm of each bin within a total."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core import _core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def best_arms(
    values: NDArray[np.float64], sizes: NDArray[np.uint32], arms: NDArray[np.uint32], *, total: int
) -> NDArray[np.uint32]:
    """Choose an arm of each bin: the costs sum to `total`, or as near as possible, and the sum of values is largest.

    Bin b with arm a costs sizes[b] * arms[a]. If no choice has the total, one of the nearest totals is used (of two,
    the smaller). The choice is exact, by dynamic programming. Among equal choices, earlier bins cost less.

    Args:
        values: bins * arms numbers, the arms of the first bin first; minus infinity excludes an arm.
        sizes: one whole number per bin.
        arms: one whole number per arm.
        total: the total to spend.

    Returns:
        `uint32[bins]`, an index of `arms` for each bin.

    Raises:
        InvalidInputError: there is no arm, lengths do not fit, or a value is NaN or plus infinity.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.operators.best_arms import best_arms
        >>> sizes, arms = np.array([1, 2], np.uint32), np.array([2, 4], np.uint32)
        >>> best_arms(np.array([0.0, 0.0, 0.0, 9.0]), sizes, arms, total=8).tolist()  # 4 + 2 * 2
        [1, 0]
    """
    return _core.select.best_arms(values, sizes, arms, total=total)
