"""Risk measures of scores, and quantiles tracked over batches."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns


def tracked_quantiles(
    state: object | None, values: object, *, levels: object, step_size: float = 0.1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Update quantiles with the scores of a batch: q <- q + step_size * (level - mean 1[x < q]).

    The function is pure: pass in the state of the last call. From RiskPO, arXiv:2510.00911, in the order of its text:
    the batch reads the quantiles from before it.

    Args:
        state: second output of the last call; None: start with the empirical quantiles of `values`.
        values: n numbers; n may be 0 if there is a state.
        levels: k numbers from 0 to 1, ascending.
        step_size: at least 0.

    Returns:
        `float64[k]` quantiles for this batch, ascending, and `float64[k]`, the next state.

    Raises:
        InvalidInputError: a number is not finite, levels do not ascend, or the state belongs to other levels.

    Example:
        >>> from agentrl_core.operators.risk import tracked_quantiles
        >>> read, state = tracked_quantiles(None, [0.0, 1.0, 2.0, 3.0], levels=[0.5])
        >>> read.tolist(), state.tolist()
        ([1.5], [1.5])
    """
    return _core.reward.tracked_quantiles(
        None if state is None else columns.doubles(state, "state"),
        columns.doubles(values, "values"),
        columns.doubles(levels, "levels"),
        step_size,
    )


def tail_risk(
    scores: object,
    low: object,
    high: object,
    *,
    alpha_low: float = 0.2,
    alpha_high: float = 0.9,
    omega: float = 1.5,
    natural_baseline: bool = True,
    tail: Literal["lower", "upper"] = "lower",
    curve: tuple[object, object] | None = None,
    valid: object | None = None,
) -> NDArray[Any]:
    """Mixed tail risk of scores, which emphasises failures below a low quantile: RiskPO, arXiv:2510.00911.

    (omega * T + RVaR) / (omega + 1) with the tail T = -max(low - s, 0) / alpha_low (CVaR) and
    RVaR = [max(s - low, 0) - max(s - high, 0) + (low - high)] / (alpha_high - alpha_low); the term (low - high) with
    `natural_baseline` only.

    Args:
        scores: n numbers.
        low: the alpha_low-quantile, one number or n.
        high: the alpha_high-quantile, one number or n.
        alpha_low: above 0.
        alpha_high: above alpha_low, at most 1.
        omega: weight of the lower tail, at least 0.
        natural_baseline: see above.
        tail: `upper`: T = max(s - high, 0) / (1 - alpha_high) instead, which is risk-seeking.
        curve: levels (ascending) and their quantiles: subtract from the numerators of T and RVaR their means over that
            curve, by trapezoids, which cancels the natural baseline. None: unchanged.
        valid: n booleans; rows that are False may hold anything and get 0. None: all rows are valid.

    Returns:
        `float32[n]` for float32 scores, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid number is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core.operators.risk import tail_risk
        >>> tail_risk([0.0, 5.0], 1.0, 4.0, alpha_low=0.2, alpha_high=0.8).round(6).tolist()
        [-5.0, 0.0]
    """
    column = columns.numbers(scores, "scores")
    count = len(column)
    mask = columns.mask(valid, "valid", length=count, first="scores")
    pair: object = curve
    if pair is not None and not (isinstance(pair, (tuple, list)) and len(pair) == 2):
        raise InvalidInputError(f"curve is {curve!r:.80}; give a pair: the levels, and the quantile at each level")
    parts = []
    for values, name in ((column, "scores"), (low, "low"), (high, "high")):
        filled = np.full(count, values, np.float64) if isinstance(values, (int, float)) else values
        numbers = columns.doubles(filled, name, length=count, first="scores")
        parts.append(numbers if mask is None else np.where(mask, numbers, 0.0))
    risks = _core.reward.tail_risk(
        parts[0],
        parts[1],
        parts[2],
        alpha_low=alpha_low,
        alpha_high=alpha_high,
        omega=omega,
        natural_baseline=natural_baseline,
        tail=tail,
        curve=None if curve is None else (columns.doubles(curve[0], "levels"), columns.doubles(curve[1], "quantiles")),
    )
    return columns.like(risks if mask is None else np.where(mask, risks, 0.0), column)
