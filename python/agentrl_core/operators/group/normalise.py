"""Normalise values within groups: the operator of GRPO, RLOO, whitening and their variants."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns

Center = Literal["mean", "none", "median", "leave_one_out", "baseline"]
Scale = Literal["std", "none", "mad", "range", "beta", "divisor"]


def normalise(
    values: object,
    ids: object,
    *,
    center: Center = "mean",
    scale: Scale = "std",
    median: Literal["midpoint", "lower"] = "midpoint",
    ddof: int = 1,
    eps: float = 1e-6,
    variance_eps: float = 0.0,
    scale_at_least: float = 0.0,
    scale_above: float = 0.0,
    votes_at_least: int | None = None,
    singleton: Literal["zero", "raw"] = "zero",
    at_most: float | None = None,
    weights: object | None = None,
    voter_ids: object | None = None,
    baseline: object | None = None,
    divisor: object | None = None,
    scale_ids: object | None = None,
    valid: object | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Normalise each value within its group.

        A = (x - c) / (max(sqrt(s^2 + variance_eps), scale_at_least) + eps), clipped to [-at_most, at_most]

    c is the centre and s the spread of the votes of the row's group; with `scale="none"` there is no division. Equal
    values give exactly 0 for any eps, and so does a spread of 0 without eps. Sums are integers on a fixed grid, so the
    result is bit-identical for any order of rows and any number of threads.

    Named special cases: GRPO (the defaults, arXiv:2402.03300), Dr. GRPO (`scale="none"`, arXiv:2503.20783), RLOO
    (`center="leave_one_out", scale="none"`, arXiv:2402.14740), Lite PPO (`scale_ids` all equal, arXiv:2508.08221), OPO
    (`weights` = lengths, `scale="none"`, arXiv:2505.23585), MC-GRPO (`center="median", scale="mad", median="lower",
    eps=1e-3`), BNPO (`scale="beta"`), ReMax (`center="baseline", scale="none"`, arXiv:2310.10505), GDPO (2-D values).

    Args:
        values: n numbers, or `[n, K]`: K independent columns, such as components of a reward.
        ids: n group ids, whole numbers or strings, in any order. All equal: the whole batch.
        center: centre to subtract: the group's `mean` or `median`, the mean of its other votes (`leave_one_out`), the
            column `baseline`, or none (`none`).
        scale: the spread: `std`, the median distance from the median (`mad`), most minus least (`range`), the density
            of a Beta distribution fitted to the means of all groups (`beta`: rewards from 0 to 1), the column
            `divisor`, or none (`none`).
        median: for an even count: the `midpoint` of the two middle values, or the `lower` one (as in torch).
        ddof: the variance divides by (votes - ddof); 0 or 1.
        eps: added to the spread.
        variance_eps: added to the squared spread, under the root.
        scale_at_least: least spread, before eps is added.
        scale_above: a group whose spread is at most this gives 0. 0: disabled.
        votes_at_least: groups with fewer votes follow `singleton`. None: the fewest that the options need.
        singleton: result of rows in a group with too few votes: 0 (`zero`), or x with c = 0 and s = 1 (`raw`, verl).
        at_most: largest absolute result.
        weights: n numbers of at least 0: votes of each row. A row with weight 0 gets a value but does not vote.
        voter_ids: n ids: rows of a group with the same voter id have one vote, their mean. None: each row is a vote.
        baseline: n numbers, for `center="baseline"`.
        divisor: n numbers, for `scale="divisor"`.
        scale_ids: n ids of the groups for the spread. None: the same groups.
        valid: n booleans (or `[n, K]`); rows that are False neither vote nor get a value (0). None: all are valid.
        out: output array of the result's shape and dtype, to avoid an allocation.

    Returns:
        The shape of `values`; `float32` for float32 values, else `float64`.

    Raises:
        InvalidInputError: lengths differ, a valid value is not finite, or an option is not possible.

    Example:
        >>> from agentrl_core import group
        >>> group.normalise([1.0, 2.0, 6.0], ["a", "a", "a"], center="leave_one_out", scale="none").tolist()
        [-3.0, -1.5, 4.5]
    """
    table = columns.numbers(values, "values", dimensions=(1, 2))
    count = len(table)
    # Positional arguments: keywords cost as much time as the rewards of a group.
    options = (
        center,
        scale,
        median,
        ddof,
        eps,
        variance_eps,
        scale_at_least,
        scale_above,
        votes_at_least,
        singleton,
        at_most,
        None if weights is None else columns.doubles(weights, "weights", length=count, first="values"),
        None if voter_ids is None else columns.labels(voter_ids, "voter_ids", length=count, first="values"),
        None if baseline is None else columns.doubles(baseline, "baseline", length=count, first="values"),
        None if divisor is None else columns.doubles(divisor, "divisor", length=count, first="values"),
        None if scale_ids is None else columns.labels(scale_ids, "scale_ids", length=count, first="values"),
    )
    if table.ndim == 1:
        groups = columns.ids(ids, "ids", length=count, first="values")
        mask = None if valid is None else columns.mask(valid, "valid", length=count, first="values")
        return _core.group.normalise(table, groups, *options, mask, out)
    groups = columns.labels(ids, "ids", length=count, first="values")
    shaped = np.empty_like(table) if out is None else columns.output(out, table.shape, table.dtype)
    masks = None if valid is None else np.asarray(valid)
    for component in range(table.shape[1]):
        of_component: object = masks[:, component] if masks is not None and masks.shape == table.shape else valid
        mask = columns.mask(of_component, "valid", length=count, first="values")
        column = np.ascontiguousarray(table[:, component])
        shaped[:, component] = _core.group.normalise(column, groups, *options, mask, None)
    return shaped


def whiten(
    values: object,
    ids: object | None = None,
    *,
    weights: object | None = None,
    valid: object | None = None,
    eps: float = 0.0,
    variance_eps: float = 1e-8,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Shift and scale values to mean 0 and unbiased variance 1: `normalise` over the whole batch.

        A = (x - mean) / (sqrt(variance + variance_eps) + eps)

    The defaults are verl's `masked_whiten`. In it every token votes: for one value per row, pass the number of trained
    tokens of each row as `weights`. A single value gives 0.

    Args:
        values: n numbers.
        ids: n ids of scopes to whiten separately. None: one scope.
        weights: n numbers of at least 0: how often a row votes.
        valid: n booleans; rows that are False neither vote nor get a value (0).
        eps: added to the standard deviation.
        variance_eps: added to the variance.
        out: array of the result's type to fill.

    Returns:
        `float32[n]` for float32 values, else `float64[n]`.

    Raises:
        InvalidInputError: as for `normalise`.

    Example:
        >>> from agentrl_core import group
        >>> group.whiten([1.0, 2.0, 3.0], variance_eps=0.0).tolist()
        [-1.0, 0.0, 1.0]
    """
    column = columns.numbers(values, "values")
    scopes: object = np.zeros(len(column), dtype=np.uint32) if ids is None else ids
    return normalise(column, scopes, weights=weights, valid=valid, eps=eps, variance_eps=variance_eps, out=out)
