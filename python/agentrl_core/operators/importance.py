"""Importance weights, trust regions and their diagnostics, from the log-ratios of tokens."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns

RatioLevel = Literal["token", "step", "step_geometric", "sequence", "geometric", "prefix", "prefix_min"]


class Diagnostics(NamedTuple):
    """Measures of the distance of two policies; r is the ratio of a token, w the product of r over a row.

    Attributes:
        effective_sample_size: (sum w)^2 / sum w^2 over rows.
        effective_fraction: effective sample size divided by `rows`.
        k1: mean of -ln r over tokens, an estimate of KL(acted, trained).
        k2: mean of (ln r)^2 / 2.
        k3: mean of r - 1 - ln r.
        chi_squared_token: mean of r^2, minus 1.
        chi_squared_sequence: mean of w^2, minus 1.
        ratio_max: the largest r.
        ratio_min: the smallest r.
        rows: rows with an unmasked token.
        tokens: unmasked tokens.
    """

    effective_sample_size: float
    effective_fraction: float
    k1: float
    k2: float
    k3: float
    chi_squared_token: float
    chi_squared_sequence: float
    ratio_max: float
    ratio_min: float
    rows: int
    tokens: int


def importance_weights(
    log_ratios: object,
    offsets: object,
    *,
    level: RatioLevel = "token",
    at_least: float | None = None,
    at_most: float | None = 2.0,
    kind: Literal["truncate", "mask", "filter", "veto"] = "truncate",
    steps: object | None = None,
    mask: object | None = None,
) -> NDArray[Any]:
    """Importance weights of tokens, factors of the loss.

    With r_t = pi(token) / mu(token): `token` r_t; `step` and `sequence` the product over a step or row;
    `step_geometric` and `geometric` its geometric mean (GSPO, arXiv:2507.18071); `prefix` the product up to the token;
    `prefix_min` r_t times the smallest r before it (MinPRO, arXiv:2601.22718). Weights out of bounds: `truncate` clips
    them (TIS), `mask` sets them to 0 (IcePop, MIS), `filter` sets them to 0 and all others to 1, `veto` sets the whole
    row to 0. Log-ratios of tokens with a common weight are clipped to +-20, as verl's `rollout_corr_helper` does.

    Args:
        log_ratios: n numbers, log pi - log mu.
        offsets: m + 1 whole numbers; row i is `log_ratios[offsets[i]:offsets[i + 1]]`; rows cover all tokens.
        level: see above.
        at_least: above 0; None: no lower bound.
        at_most: None: no upper bound.
        kind: see above.
        steps: offsets of the steps (turns, chunks), for step levels; no step may cross a row's end.
        mask: n booleans, True for sampled tokens; others are ignored and get 0. None: all.

    Returns:
        `float32[n]` for float32 log_ratios, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, an unmasked log-ratio is not finite, bounds are not 0 < at_least
            <= at_most, or steps are missing or cross rows.

    Example:
        >>> from agentrl_core.operators.importance import importance_weights
        >>> importance_weights([0.0, 1.0, -1.0], [0, 3]).round(4).tolist()
        [1.0, 2.0, 0.3679]
        >>> importance_weights([0.0, 1.0, -1.0], [0, 3], level="sequence").tolist()
        [1.0, 1.0, 1.0]
    """
    numbers = columns.numbers(log_ratios, "log_ratios")
    return _core.weight.importance(
        numbers,
        columns.integers(offsets, "offsets"),
        level=level,
        at_least=at_least,
        at_most=at_most,
        kind=kind,
        steps=None if steps is None else columns.integers(steps, "steps"),
        mask=columns.mask(mask, "mask", length=len(numbers), first="log_ratios"),
    )


def trust_region(
    log_ratios: object,
    offsets: object,
    *,
    at_most: float,
    at_least: float | None = None,
    kind: Literal["k1", "k2", "k3"] = "k3",
    aggregate: Literal["token", "sum", "mean", "max"] = "token",
    mask: object | None = None,
) -> NDArray[np.bool_]:
    """Select tokens within a trust region, by their own divergence (`token`) or the sum, mean or max of their row.

    With d = log pi - log mu: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d. These are verl's `rollout_rs` modes,
    `token_k1` to
    `seq_max_k3`; for its ratio bounds a and b of k1, give at_least=ln(a) and at_most=ln(b).

    Args:
        log_ratios: n numbers.
        offsets: as for `importance_weights`.
        at_most: the largest divergence to keep.
        at_least: the smallest divergence to keep; None: any.
        kind: see above.
        aggregate: see above.
        mask: as for `importance_weights`; other tokens are False.

    Returns:
        `bool[n]`.

    Raises:
        InvalidInputError: lengths differ, an unmasked log-ratio is not finite, or at_least is above
            at_most.

    Example:
        >>> from agentrl_core.operators.importance import trust_region
        >>> trust_region([0.0, 2.0, 0.1], [0, 2, 3], at_most=0.5, aggregate="max").tolist()
        [False, False, True]
    """
    numbers = columns.numbers(log_ratios, "log_ratios")
    return _core.weight.trust_region(
        numbers,
        columns.integers(offsets, "offsets"),
        kind=kind,
        aggregate=aggregate,
        at_least=at_least,
        at_most=at_most,
        mask=columns.mask(mask, "mask", length=len(numbers), first="log_ratios"),
    )


def importance_diagnostics(log_ratios: object, offsets: object, *, mask: object | None = None) -> Diagnostics:
    """Compute effective sample size, divergences and extreme ratios of two policies over some rows.

    Args:
        log_ratios: n numbers, log pi - log mu.
        offsets: as for `importance_weights`.
        mask: as for `importance_weights`.

    Raises:
        InvalidInputError: lengths differ, an unmasked log-ratio is not finite, or all tokens are masked.

    Example:
        >>> from agentrl_core.operators.importance import importance_diagnostics
        >>> importance_diagnostics([0.0, 0.0, 0.0], [0, 1, 3]).effective_sample_size
        2.0
    """
    numbers = columns.numbers(log_ratios, "log_ratios")
    diagnostics = _core.weight.importance_diagnostics(
        numbers,
        columns.integers(offsets, "offsets"),
        mask=columns.mask(mask, "mask", length=len(numbers), first="log_ratios"),
    )
    return Diagnostics(**diagnostics)
