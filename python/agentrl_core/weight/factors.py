"""Factors of tokens, steps and rows, and the scores that selectors read.

Factors with mean 1 are `group.mean_one`, factors that follow a score linearly are `group.min_max`; entropy gates are
`group.mean_one(exp(-k * group.min_max(entropy)))`, duration weights `group.mean_one(durations)`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


def covariance(
    first: object, second: object, group_ids: object | None = None, *, valid: object | None = None
) -> NDArray[Any]:
    """(a - mean(a)) * (b - mean(b)) of each row, means over its group: what Clip-Cov and KL-Cov read, arXiv:2505.22617.

    Args:
        first: n numbers (advantages).
        second: n numbers (log-probabilities).
        group_ids: n group ids; None: one group.
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` if first is float32, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or a valid number is not finite.

    Example:
        >>> from agentrl_core import weight
        >>> weight.covariance([1.0, 1.0, -1.0, -1.0], [-0.1, -2.0, -0.1, -2.0]).round(4).tolist()
        [0.95, -0.95, -0.95, 0.95]
    """
    given = columns.numbers(first, "first")
    one, other = columns.alike(first=given, second=second)
    made = _core.weight_covariance(
        one,
        other,
        columns.groups(group_ids, "group_ids", length=len(given)),
        valid=columns.mask(valid, "valid", length=len(given)),
    )
    return columns.like(made, given)


def entropy_change(
    advantages: object, logprobs: object, old_logprobs: object, entropies: object, *, valid: object | None = None
) -> NDArray[Any]:
    """|A / pi_old * pi * (1 - pi) * (ln pi + H)|: an update's change of entropy. STEER, arXiv:2510.10150.

    Args:
        advantages: n numbers.
        logprobs: n log-probabilities under the current policy.
        old_logprobs: n log-probabilities under the old one; both are kept within [1e-8, 1 - 1e-8] as probabilities.
        entropies: n entropies of the current policy, in nats.
        valid: n booleans; rows that are False get 0. None: all rows are valid.

    Returns:
        `float32[n]` for float32 advantages, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or a valid number is not finite.

    Example:
        >>> from agentrl_core import weight
        >>> logprob = [-0.105360515657826]  # ln 0.9
        >>> weight.entropy_change([1.0], logprob, logprob, [0.5]).round(7).tolist()
        [0.0394639]
    """
    given = columns.numbers(advantages, "advantages")
    made = _core.weight_entropy_change(
        *columns.alike(advantages=given, logprobs=logprobs, old_logprobs=old_logprobs, entropies=entropies),
        valid=columns.mask(valid, "valid", length=len(given)),
    )
    return columns.like(made, given)


def damping(
    scores: object,
    group_ids: object | None = None,
    *,
    least: float = 0.8,
    floor: float = 0.02,
    valid: object | None = None,
) -> NDArray[Any]:
    """Weights that fall with a score from 1 to `least`: max(exp(-k x), least), k = -ln(least) / max(largest, floor).

    The exponential map of STEER, arXiv:2510.10150; the largest score is that of the group.

    Args:
        scores: n numbers of at least 0.
        group_ids: n group ids; None: one group.
        least: above 0, at most 1.
        floor: above 0; scores that are all below it hardly count.
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 scores, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid score is negative or not finite, or an option is out of range.

    Example:
        >>> from agentrl_core import weight
        >>> weight.damping([0.0, 0.5, 1.0], least=0.64).round(4).tolist()
        [1.0, 0.8, 0.64]
    """
    given = columns.numbers(scores, "scores")
    return _core.weight_damping(
        given,
        columns.groups(group_ids, "group_ids", length=len(given)),
        least=least,
        floor=floor,
        valid=columns.mask(valid, "valid", length=len(given)),
    )


def probability_shape(
    logprobs: object, *, shape: Literal["ratio", "complement", "power"] = "ratio", constant: float = 0.1
) -> NDArray[Any]:
    """A factor from a token's probability p: p / (p + c), (1 - p)^c or p^c.

    `ratio`: off-policy tokens of LUFFY, arXiv:2504.14945; `complement`: RL-PLUS, arXiv:2508.00222.

    Args:
        logprobs: n log-probabilities; minus infinity is probability 0.
        shape: see above.
        constant: c, above 0.

    Returns:
        `float32[n]` for float32 logprobs, else `float64[n]`.

    Raises:
        InvalidInputError: a log-probability is NaN or above 0, or an option is out of range.

    Example:
        >>> from agentrl_core import weight
        >>> weight.probability_shape([0.0, -1e9], constant=1.0).tolist()
        [0.5, 0.0]
    """
    return _core.weight_probability_shape(columns.numbers(logprobs, "logprobs"), shape, constant)


def by_sign(advantages: object, *, positive: object = 1.0, negative: object = 1.0) -> NDArray[Any]:
    """The factor of each row by the sign of its advantage: `positive`, `negative`, or 1 where it is 0.

    W-REINFORCE, arXiv:2506.01347: positive=0.1; GUI-Libra, arXiv:2602.22190: negative = clamp(b + c * group mean, 0,
    1).

    Args:
        advantages: n numbers.
        positive: one number or n.
        negative: one number or n.

    Returns:
        `float32[n]` for float32 advantages, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or a number is not finite.

    Example:
        >>> from agentrl_core import weight
        >>> weight.by_sign([2.0, -1.0, 0.0], positive=0.1).tolist()
        [0.1, 1.0, 1.0]
    """
    factors = [
        columns.doubles([values] if isinstance(values, (int, float)) else values, name)
        for values, name in ((positive, "positive"), (negative, "negative"))
    ]
    return _core.weight_by_sign(columns.numbers(advantages, "advantages"), *factors)


def novelty_bonus(
    advantages: object,
    mean_logprobs: object,
    group_ids: object | None = None,
    *,
    rate: float = 2.5,
    cap: float = 0.5,
    valid: object | None = None,
) -> NDArray[Any]:
    """What unlikely successes get on top: min(max(rate * (1 - exp(s - mean(s))), 0), cap * A) where A > 0, else 0.

    s is the mean log-probability of a row's tokens, mean(s) that of its group. XRPO, arXiv:2510.06672.

    Args:
        advantages: n numbers.
        mean_logprobs: n numbers.
        group_ids: n group ids; None: one group.
        rate: at least 0.
        cap: at least 0, in units of the advantage.
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 advantages, else `float64[n]`; add it to the advantages.

    Raises:
        InvalidInputError: lengths differ, a valid number is not finite, or an option is negative.

    Example:
        >>> from agentrl_core import weight
        >>> weight.novelty_bonus([1.0, 1.0, -1.0], [-3.0, -1.0, -2.0], rate=0.5, cap=0.2).tolist()
        [0.2, 0.0, 0.0]
    """
    given = columns.numbers(advantages, "advantages")
    gains, means = columns.alike(advantages=given, mean_logprobs=mean_logprobs)
    made = _core.weight_novelty_bonus(
        gains,
        means,
        columns.groups(group_ids, "group_ids", length=len(given)),
        rate=rate,
        cap=cap,
        valid=columns.mask(valid, "valid", length=len(given)),
    )
    return columns.like(made, given)


def conflict_tokens(
    tokens: object, offsets: object, group_ids: object, advantages: object
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tokens that good and bad rows of a group share at the same place, at either end. GTPO, arXiv:2508.03772.

    Args:
        tokens: token ids, row after row.
        offsets: n + 1 whole numbers; row i is `tokens[offsets[i]:offsets[i + 1]]`.
        group_ids: n group ids.
        advantages: n numbers; rows with 0 neither make a conflict nor have one.

    Returns:
        `bool[len(tokens)]`, the runs from the start of each row, and `bool[len(tokens)]`, those that reach its end.

    Raises:
        InvalidInputError: lengths differ, a token id does not fit 32 bits, or an advantage is not finite.

    Example:
        >>> from agentrl_core import weight
        >>> first, last = weight.conflict_tokens([5, 6, 9, 5, 8, 9], [0, 3, 6], [0, 0], [1.0, -1.0])
        >>> first.tolist(), last.tolist()
        ([True, False, False, True, False, False], [False, False, True, False, False, True])
    """
    bounds = columns.integers(offsets, "offsets")
    rows = max(len(bounds) - 1, 0)
    return _core.weight_conflict_tokens(
        columns.keys(tokens, "tokens").astype(np.int32),
        bounds,
        columns.keys(group_ids, "group_ids", length=rows),
        columns.doubles(advantages, "advantages", length=rows),
    )
