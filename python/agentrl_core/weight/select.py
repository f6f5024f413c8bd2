"""From scores to masks: which rows or tokens of each group are chosen.

Every selector takes scores, group ids (None: all rows are one group) and `valid`, and returns `bool[n]`, False in rows
that are not valid. Nothing is normalised again afterwards: choose the denominator of the loss yourself.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


def top(
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
    """The rows of each group with the largest scores, in O(n). CPPO, arXiv:2503.22342; VPPO, arXiv:2510.09285.

    Args:
        scores: n numbers.
        group_ids: n group ids; None: one group.
        count: how many of each group; or
        fraction: what part of its valid rows, from 0 to 1, made whole by `rounding`, at least `at_least`.
        rounding: `floor`, `ceil` or `nearest` (halves to even).
        at_least: see `fraction`.
        largest: False: the smallest scores.
        ties: of rows equal to the last chosen one, the earlier are chosen (`first`) or all (`all`).
        valid: n booleans; rows that are False are not chosen. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or not exactly one of count and fraction is
            given.

    Example:
        >>> from agentrl_core import weight
        >>> weight.top([1.0, 3.0, 2.0, 9.0], ["a", "a", "a", "b"], count=1).tolist()
        [False, True, False, True]
    """
    numbers = columns.numbers(scores, "scores")
    return _core.weight_top(
        numbers,
        columns.groups(group_ids, "group_ids", length=len(numbers)),
        count=count,
        fraction=fraction,
        rounding=rounding,
        at_least=at_least,
        largest=largest,
        ties=ties,
        valid=columns.mask(valid, "valid", length=len(numbers)),
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
    """The rows whose score is at least the q-quantile of their group. 80/20 forking tokens, arXiv:2506.01939: q=0.8.

    Args:
        scores: n numbers.
        group_ids: n group ids (of sequences, for a quantile of each); None: one group.
        q: from 0 to 1.
        interpolation: as in `numpy.quantile`.
        strict: above the quantile only.
        valid: n booleans; rows that are False neither vote nor are chosen. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or q is out of range.

    Example:
        >>> from agentrl_core import weight
        >>> weight.above_quantile([1.0, 2.0, 3.0, 4.0], q=0.5).tolist()
        [False, False, True, True]
    """
    numbers = columns.numbers(scores, "scores")
    return _core.weight_above_quantile(
        numbers,
        columns.groups(group_ids, "group_ids", length=len(numbers)),
        q=q,
        interpolation=interpolation,
        strict=strict,
        valid=columns.mask(valid, "valid", length=len(numbers)),
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
    """The rows of each group whose scores vary most: some of the lowest and some of the highest, exactly, O(n log n).

    PODS, arXiv:2504.13818; D3S, arXiv:2509.22115. Equal scores: the first rows.

    Args:
        scores: n numbers.
        group_ids: n group ids; None: one group.
        count: how many of each group; or
        fraction: what part of its valid rows, made whole by `rounding`, at least `at_least`.
        rounding: `floor`, `ceil` or `nearest`.
        at_least: see `fraction`.
        valid: n booleans; rows that are False are not chosen. None: all rows are valid.

    Raises:
        InvalidInputError: as for `top`.

    Example:
        >>> from agentrl_core import weight
        >>> weight.max_variance_subset([0.0, 0.5, 0.6, 1.0], count=2).tolist()
        [True, False, False, True]
    """
    numbers = columns.doubles(scores, "scores")
    return _core.weight_max_variance(
        numbers,
        columns.groups(group_ids, "group_ids", length=len(numbers)),
        count=count,
        fraction=fraction,
        rounding=rounding,
        at_least=at_least,
        valid=columns.mask(valid, "valid", length=len(numbers)),
    )


def quota(
    penalties: object,
    success: object,
    group_ids: object | None = None,
    *,
    target: int,
    failures_at_least: int = 2,
    successes_at_least: int = 2,
    seed: int | None = None,
    ids: object | None = None,
    valid: object | None = None,
) -> NDArray[np.bool_]:
    """`target` rows of each group, successes and failures in proportion: the cleanest successes, any failures.

    Resample-on-Correct of rStar2-Agent, arXiv:2508.20722. A group with fewer valid rows than `target` is dropped; where
    both kinds would fall to their minimum, all its rows are chosen.

    Args:
        penalties: n numbers; successes with the smallest are chosen.
        success: n booleans.
        group_ids: n group ids; None: one group.
        target: rows of each group.
        failures_at_least: least number of failures, where there are as many.
        successes_at_least: least number of successes, where there are as many.
        seed: chooses the failures at random (the paper); None: the first ones (the public code).
        ids: n whole numbers that name the rows for the random choice; None: the row's place.
        valid: n booleans; rows that are False neither count nor are chosen. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, or a valid penalty is not finite.

    Example:
        >>> from agentrl_core import weight
        >>> success = [True, True, True, False, False, False]
        >>> weight.quota([0.9, 0.1, 0.5, 0.0, 0.0, 0.0], success, target=4, failures_at_least=1).tolist()
        [False, True, True, True, True, False]
    """
    numbers = columns.doubles(penalties, "penalties")
    return _core.weight_quota(
        numbers,
        columns.flags(success, "success", length=len(numbers)),
        columns.groups(group_ids, "group_ids", length=len(numbers)),
        columns.places(ids, "ids", length=len(numbers)),
        target=target,
        failures_at_least=failures_at_least,
        successes_at_least=successes_at_least,
        seed=seed,
        valid=columns.mask(valid, "valid", length=len(numbers)),
    )
