"""Mask rows not worth training on; they stay in the batch, and count in the statistics of their group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

_CLEAN = 1e-9
"""Added to each penalty, so that chance decides between successes without one."""


def group_band(
    scores: object,
    group_ids: object | None,
    *,
    std_above: float | None = 0.0,
    at_least: float | None = None,
    at_most: float | None = None,
    members_at_least: int = 1,
    ddof: int = 0,
    accept_single: bool = False,
    valid: object | None = None,
) -> NDArray[np.bool_]:
    """Keep rows of groups with a learning signal: std > std_above, at_least <= mean <= at_most, and enough members.

    With the defaults: dynamic sampling, which drops groups whose scores are all equal (DAPO, arXiv:2503.14476).
    Accuracy bands: PRIME, arXiv:2502.01456, [0.2, 0.8]; SimpleTIR, arXiv:2509.02479, [0.1, 0.9] with std_above 1e-3.

    Args:
        scores: n numbers.
        group_ids: n group ids, whole numbers or strings, in any order; None: one group.
        std_above: None: any deviation, including that of a single row.
        at_least: smallest mean; None: any.
        at_most: largest mean; None: any.
        members_at_least: smallest number of valid rows.
        ddof: the variance divides by (count - ddof); 0 or 1.
        accept_single: whether a group with one valid row needs no deviation.
        valid: n booleans; rows that are False neither vote nor are kept. None: all rows are valid.

    Returns:
        `bool[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or an option is not possible.

    Example:
        >>> from agentrl_core.operators import filters
        >>> filters.group_band([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"]).tolist()
        [True, True, False, False]
    """
    numbers, groups, mask = columns.scored(scores, group_ids, valid)
    return _core.filters.group_band(
        numbers.astype(np.float64, copy=False),
        groups,
        std_above=std_above,
        ddof=ddof,
        at_least=at_least,
        at_most=at_most,
        members_at_least=members_at_least,
        accept_single=accept_single,
        valid=mask,
    )


def top_groups(
    scores: object, group_ids: object | None, fraction: float, *, ddof: int = 0, valid: object | None = None
) -> NDArray[np.bool_]:
    """Keep the rows of the groups with the largest standard deviations, `fraction` of all groups, at least one.

    From SPEAR, arXiv:2509.22601 (0.75).

    Args:
        scores: n numbers.
        group_ids: n group ids; None: one group.
        fraction: 0 to 1, rounded down to whole groups; ties: the earlier groups are kept.
        ddof: the variance divides by (count - ddof); 0 or 1.
        valid: n booleans; rows that are False neither vote nor are kept. None: all rows are valid.

    Returns:
        `bool[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or `fraction` is out of range.

    Example:
        >>> from agentrl_core.operators import filters
        >>> filters.top_groups([1.0, 0.0, 0.5, 0.4], [1, 1, 2, 2], 0.5).tolist()
        [True, True, False, False]
    """
    numbers, groups, mask = columns.scored(scores, group_ids, valid)
    return _core.filters.top_groups(
        numbers.astype(np.float64, copy=False),
        groups,
        fraction=fraction,
        ddof=ddof,
        valid=mask,
    )


def round_rows(
    keep: object, multiple: int, *, scores: object | None = None, up: bool = False, valid: object | None = None
) -> NDArray[np.bool_]:
    """Change a mask so that the number of kept rows is divisible by `multiple`, such as the number of ranks.

    Args:
        keep: n booleans.
        multiple: at least 1.
        scores: n numbers; kept rows with the smallest are dropped first, and dropped rows with the largest come back
            first. None: later rows are dropped first, earlier ones come back first.
        up: whether to add rows instead of dropping some, if there are enough valid ones.
        valid: n booleans; rows that are False are never kept. None: all rows are valid.

    Returns:
        `bool[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or `multiple` is 0.

    Example:
        >>> from agentrl_core.operators import filters
        >>> filters.round_rows([True, True, True, False], 2, scores=[0.3, 0.1, 0.2, 0.0]).tolist()
        [True, False, True, False]
    """
    kept = columns.flags(keep, "keep")
    count = len(kept)
    return _core.filters.round_rows(
        kept,
        np.zeros(count) if scores is None else columns.doubles(scores, "scores", length=count, first="keep"),
        multiple=multiple,
        up=up,
        valid=columns.mask(valid, "valid", length=count, first="keep"),
    )


def resample_quota(
    penalties: object,
    success: object,
    group_ids: object,
    ids: object,
    *,
    target: int,
    at_least: int = 2,
    seed: int | None = None,
    valid: object | None = None,
) -> NDArray[np.bool_]:
    """Choose `target` rows of each group that has as many, successes in about their share. rStar2, arXiv:2508.20722.

    With `seed`, successes are drawn without replacement with weights 1 / penalty, those without a penalty first, and
    failures with equal weights. If both kinds would fall to `at_least`, all rows are chosen; of a group with fewer rows
    than `target`, none.

    Args:
        penalties: n numbers; with `seed` at least 0.
        success: n booleans.
        group_ids: n group ids.
        ids: n whole numbers that name the rows; with `seed`, the choice follows from them.
        target: rows of each group.
        at_least: smallest number of successes, and of failures.
        seed: of the choice; None: the successes with the smallest penalty, and the first failures.
        valid: n booleans; rows that are False are not chosen. None: all rows are valid.

    Returns:
        `bool[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid penalty is not finite or, with `seed`, negative, or an option is not
            possible.

    Example:
        >>> from agentrl_core.operators import filters
        >>> success = [True, True, True, False, False, False]
        >>> penalties, ids = [0.9, 0.1, 0.5, 0.0, 0.0, 0.0], [0, 1, 2, 3, 4, 5]
        >>> filters.resample_quota(penalties, success, [7] * 6, ids, target=4, at_least=1).tolist()
        [False, True, True, True, True, False]
    """
    numbers = columns.doubles(penalties, "penalties")
    count = len(numbers)
    rows = columns.integers(ids, "ids", length=count, first="penalties")
    allowed = columns.mask(valid, "valid", length=count, first="penalties")
    if seed is not None:
        negative = numbers < 0.0 if allowed is None else (numbers < 0.0) & allowed
        if negative.any():
            odd = int(np.flatnonzero(negative)[0])
            raise InvalidInputError(f"penalties[{odd}] is {numbers[odd]}; give at least 0, or seed=None")
        known = np.isfinite(numbers) & (numbers >= 0.0)
        weights = 1.0 / (np.where(known, numbers, 0.0) + _CLEAN)
        numbers = np.where(known, _core.replay.race(rows, weights, key=_core.rng.structural_seed(seed, 1)), numbers)
    return _core.weight.quota(
        numbers,
        columns.flags(success, "success", length=count, first="penalties"),
        columns.groups(group_ids, "group_ids", length=count, first="penalties"),
        rows,
        target=target,
        at_least=at_least,
        seed=seed,
        valid=allowed,
    )
