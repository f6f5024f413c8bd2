"""Importance ratios between the policy that is trained and the one that acted: weights, masks, diagnostics."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns

_Level = Literal["token", "segment", "segment_geometric", "sequence", "geometric", "prefix", "prefix_min"]


class Diagnostics(NamedTuple):
    """How far two policies are apart; r is the ratio of a token, w its product over a row.

    Attributes:
        effective_sample_size: (sum w)^2 / sum w^2 over rows.
        effective_fraction: the same as a part of `rows`.
        k1: mean of -ln r over tokens, an estimate of KL(acted, trained).
        k2: mean of (ln r)^2 / 2.
        k3: mean of r - 1 - ln r.
        chi_squared_token: mean of r^2, minus 1.
        chi_squared_sequence: mean of w^2, minus 1.
        ratio_max: the largest r.
        ratio_min: the smallest r.
        rows: rows with a token that takes part.
        tokens: tokens that take part.
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
    level: _Level = "token",
    at_least: float | None = None,
    at_most: float | None = 2.0,
    action: Literal["truncate", "mask", "filter", "veto"] = "truncate",
    segments: object | None = None,
    mask: object | None = None,
) -> NDArray[Any]:
    """Importance weights of tokens, with which the loss is multiplied.

    With r_t = pi(token) / mu(token): `token` r_t; `segment` and `sequence` the product over a segment or row;
    `segment_geometric` and `geometric` its geometric mean (GSPO, arXiv:2507.18071); `prefix` the product up to the
    token; `prefix_min` r_t times the smallest r before it (MinPRO, arXiv:2601.22718). Beyond the bounds: `truncate` to
    them (TIS), `mask` to 0 (IcePop, MIS), `filter` to 0 and all others to 1, `veto` the whole row to 0. Log-ratios of
    what shares a weight are kept within +-20, as verl's `rollout_corr_helper` does.

    Args:
        log_ratios: n numbers, log pi - log mu.
        offsets: m + 1 whole numbers; row i is `log_ratios[offsets[i]:offsets[i + 1]]`; rows cover all tokens.
        level: see above.
        at_least: above 0; None: no lower bound.
        at_most: None: no upper bound.
        action: see above.
        segments: offsets of the segments (turns, chunks), for their levels; none may cross a row's end.
        mask: n booleans, True where the policy acted: other tokens take no part and get 0. None: all.

    Returns:
        `float32[n]` for float32 log_ratios, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a log-ratio that takes part is not finite, bounds are not 0 < at_least
            <= at_most, or segments are missing or cross rows.

    Example:
        >>> from agentrl_core import weight
        >>> weight.importance_weights([0.0, 1.0, -1.0], [0, 3]).round(4).tolist()
        [1.0, 2.0, 0.3679]
        >>> weight.importance_weights([0.0, 1.0, -1.0], [0, 3], level="sequence").tolist()
        [1.0, 1.0, 1.0]
    """
    given = columns.numbers(log_ratios, "log_ratios")
    return _core.weight_importance(
        given,
        columns.integers(offsets, "offsets"),
        level=level,
        at_least=at_least,
        at_most=at_most,
        action=action,
        segments=None if segments is None else columns.integers(segments, "segments"),
        mask=columns.mask(mask, "mask", length=len(given)),
    )


def trust_region(
    log_ratios: object,
    offsets: object,
    *,
    at_most: float,
    at_least: float | None = None,
    divergence: Literal["k1", "k2", "k3"] = "k3",
    aggregate: Literal["token", "sum", "mean", "max"] = "token",
    mask: object | None = None,
) -> NDArray[np.bool_]:
    """Which tokens are near enough to be trained: alone (`token`), or with the sum, mean or largest of their row.

    With d = log pi - log mu: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d. These are verl's `rollout_rs` modes,
    `token_k1` to
    `seq_max_k3`; where it takes ratios a and b as bounds of k1, give at_least=ln(a) and at_most=ln(b).

    Args:
        log_ratios: n numbers.
        offsets: as for `importance_weights`.
        at_most: the largest divergence that is kept.
        at_least: the least; None: any.
        divergence: see above.
        aggregate: see above.
        mask: as for `importance_weights`; other tokens are False.

    Returns:
        `bool[n]`.

    Raises:
        InvalidInputError: lengths differ, a log-ratio that takes part is not finite, or at_least is above
            at_most.

    Example:
        >>> from agentrl_core import weight
        >>> weight.trust_region([0.0, 2.0, 0.1], [0, 2, 3], at_most=0.5, aggregate="max").tolist()
        [False, False, True]
    """
    numbers = columns.numbers(log_ratios, "log_ratios")
    return _core.weight_trust_region(
        numbers,
        columns.integers(offsets, "offsets"),
        divergence=divergence,
        aggregate=aggregate,
        at_least=at_least,
        at_most=at_most,
        mask=columns.mask(mask, "mask", length=len(numbers)),
    )


def importance_diagnostics(log_ratios: object, offsets: object, *, mask: object | None = None) -> Diagnostics:
    """Effective sample size, divergences and extreme ratios of some rows.

    Args:
        log_ratios: n numbers, log pi - log mu.
        offsets: as for `importance_weights`.
        mask: as for `importance_weights`.

    Raises:
        InvalidInputError: lengths differ, a log-ratio that takes part is not finite, or no token takes part.

    Example:
        >>> from agentrl_core import weight
        >>> weight.importance_diagnostics([0.0, 0.0, 0.0], [0, 1, 3]).effective_sample_size
        2.0
    """
    numbers = columns.numbers(log_ratios, "log_ratios")
    found = _core.weight_importance_diagnostics(
        numbers,
        columns.integers(offsets, "offsets"),
        mask=columns.mask(mask, "mask", length=len(numbers)),
    )
    return Diagnostics(**found)
