"""Select rows of groups by their values."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


def top_rows(
    scores: object,
    group_ids: object | None = None,
    *,
    count: int | None = None,
    fraction: float | None = None,
    rounding: Literal["floor", "ceil", "nearest"] = "floor",
    at_least: int = 0,
    largest: bool = True,
    ties: Literal["first", "all"] = "first",
    valid: object | None = None,
) -> NDArray[np.bool_]:
    """Select the rows of each group with the largest scores, in O(n). CPPO, arXiv:2503.22342; VPPO, arXiv:2510.09285.

    Args:
        scores: n numbers.
        group_ids: n group ids; None: one group.
        count: number of rows per group; give it or `fraction`.
        fraction: share of the valid rows of the group, from 0 to 1, rounded by `rounding`, at least `at_least`.
        rounding: `floor`, `ceil` or `nearest` (halves to even).
        at_least: see `fraction`.
        largest: False selects the smallest scores.
        ties: among rows equal to the last selected one, select the earlier (`first`) or all (`all`).
        valid: n booleans; rows that are False are not selected. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or not exactly one of count and fraction is
            given.

    Example:
        >>> from agentrl_core.operators.row_selection import top_rows
        >>> top_rows([1.0, 3.0, 2.0, 9.0], ["a", "a", "a", "b"], count=1).tolist()
        [False, True, False, True]
    """
    numbers = columns.numbers(scores, "scores")
    # Without ids, the core searches all rows at once, which is faster for a long column.
    groups = None if group_ids is None else columns.keys(group_ids, "group_ids", length=len(numbers), first="scores")
    return _core.weight.top(
        numbers,
        groups,
        count=count,
        fraction=fraction,
        rounding=rounding,
        at_least=at_least,
        largest=largest,
        ties=ties,
        valid=columns.mask(valid, "valid", length=len(numbers), first="scores"),
    )


def above_quantile(
    scores: object,
    group_ids: object | None = None,
    *,
    q: float,
    interpolation: Literal["linear", "lower", "higher", "nearest", "midpoint"] = "linear",
    strict: bool = False,
    valid: object | None = None,
) -> NDArray[np.bool_]:
    """Select rows at or above the q-quantile of their group. 80/20 forking tokens, arXiv:2506.01939: q=0.8.

    Args:
        scores: n numbers.
        group_ids: n group ids (of sequences, for a quantile of each); None: one group.
        q: from 0 to 1.
        interpolation: as in `numpy.quantile`.
        strict: whether to select only rows above the quantile.
        valid: n booleans; rows that are False neither vote nor are selected. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or q is out of range.

    Example:
        >>> from agentrl_core.operators.row_selection import above_quantile
        >>> above_quantile([1.0, 2.0, 3.0, 4.0], q=0.5).tolist()
        [False, False, True, True]
    """
    numbers, groups, mask = columns.scored(scores, group_ids, valid)
    return _core.weight.above_quantile(
        numbers,
        groups,
        q=q,
        interpolation=interpolation,
        strict=strict,
        valid=mask,
    )


def max_variance_subset(
    scores: object,
    group_ids: object | None = None,
    *,
    count: int | None = None,
    fraction: float | None = None,
    rounding: Literal["floor", "ceil", "nearest"] = "floor",
    at_least: int = 0,
    valid: object | None = None,
) -> NDArray[np.bool_]:
    """Select the rows of each group whose scores together have the largest variance. O(n log n).

    They are some of the lowest and some of the highest.

    PODS, arXiv:2504.13818; D3S, arXiv:2509.22115. Equal scores: the first rows.

    Args:
        scores: n numbers.
        group_ids: n group ids; None: one group.
        count: number of rows per group; give it or `fraction`.
        fraction: share of the valid rows of the group, rounded by `rounding`, at least `at_least`.
        rounding: `floor`, `ceil` or `nearest`.
        at_least: see `fraction`.
        valid: n booleans; rows that are False are not selected. None: all rows are valid.

    Raises:
        InvalidInputError: as for `top_rows`.

    Example:
        >>> from agentrl_core.operators.row_selection import max_variance_subset
        >>> max_variance_subset([0.0, 0.5, 0.6, 1.0], count=2).tolist()
        [True, False, False, True]
    """
    numbers, groups, mask = columns.scored(scores, group_ids, valid)
    return _core.weight.max_variance(
        numbers.astype(np.float64, copy=False),
        groups,
        count=count,
        fraction=fraction,
        rounding=rounding,
        at_least=at_least,
        valid=mask,
    )
