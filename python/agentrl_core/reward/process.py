"""Rewards of steps and tokens: gains in what is known, rewards that a model implies, items of checklists."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns


class ChecklistRewards(NamedTuple):
    """The rewards of items at steps.

    Attributes:
        earned: `float64[steps, items]`, at most one positive entry for an item of a turn.
        backfilled: `float64[steps, items]`, the same for every step that could have earned the item before it was
            earned.
        eligible: `bool[steps, items]`, whether the step could earn the item.
    """

    earned: NDArray[np.float64]
    backfilled: NDArray[np.float64]
    eligible: NDArray[np.bool_]


def information_gain(
    answer_logprobs: object,
    offsets: object,
    before: object,
    *,
    unit: Literal["probability", "log_probability"] = "probability",
) -> NDArray[Any]:
    """What each step added to the likelihood of the right answer: g_k = P_k - P_{k-1}. From IGPO, arXiv:2510.14967.

    P is exp(l) or l, where l_k is the mean log-probability of the answer's tokens when it is probed after step k.

    Args:
        answer_logprobs: l_k of every step, trajectory after trajectory.
        offsets: n + 1 whole numbers; the steps of trajectory i are `answer_logprobs[offsets[i]:offsets[i + 1]]`.
        before: n numbers, l before the first step.
        unit: the difference of probabilities, or of log-probabilities (the newer public script).

    Returns:
        As long as `answer_logprobs`; float32 if it is, else float64.

    Raises:
        InvalidInputError: lengths differ, or a log-probability is above 0 or not finite.

    Example:
        >>> from agentrl_core import reward
        >>> reward.information_gain([-2.0, -1.0], [0, 2], [-2.5], unit="log_probability").tolist()
        [0.5, 1.0]
    """
    given = columns.numbers(answer_logprobs, "answer_logprobs")
    made = _core.reward_information_gain(
        columns.doubles(given, "answer_logprobs"),
        columns.integers(offsets, "offsets"),
        columns.doubles(before, "before"),
        unit,
    )
    return columns.like(made, given)


def implicit_rewards(
    logprobs: object, reference_logprobs: object, *, beta: float = 0.05, offsets: object | None = None
) -> NDArray[Any]:
    """Rewards that a model implies: beta * (log pi(token) - log pi_ref(token)), of tokens or summed over rows.

    Of tokens: PRIME, arXiv:2502.01456; of steps: iStar, arXiv:2509.19199.

    Args:
        logprobs: n numbers, of the reward model.
        reference_logprobs: n numbers, of its reference.
        beta: scale.
        offsets: m + 1 whole numbers: the sum over each row (step or trajectory); None: each token by itself.

    Returns:
        n or m numbers; float32 for float32 logprobs, else float64.

    Raises:
        InvalidInputError: lengths differ, or a number is not finite.

    Example:
        >>> from agentrl_core import reward
        >>> reward.implicit_rewards([-1.0, -2.0, -1.0], [-2.0, -1.0, -3.0], beta=0.5, offsets=[0, 2, 3]).tolist()
        [0.0, 1.0]
    """
    given = columns.numbers(logprobs, "logprobs")
    made = _core.reward_implicit(
        columns.doubles(given, "logprobs"),
        columns.doubles(reference_logprobs, "reference_logprobs", length=len(given)),
        None if offsets is None else columns.integers(offsets, "offsets"),
        beta,
    )
    return columns.like(made, given)


def checklist(satisfied: object, dependencies: object, offsets: object, *, delay: float = 1.0) -> ChecklistRewards:
    """Credit the items of a checklist to the steps of turns. From CM2, arXiv:2602.12268.

    An item is eligible at a step if the items it depends on were satisfied before the step and it was not; the first
    step after which it is satisfied earns it, if it was eligible there, times delay ** (steps it was eligible before).

    Args:
        satisfied: `bool[steps, items]`, the verdicts after each step, turn after turn.
        dependencies: `bool[items, items]`, True where the row's item depends on the column's; `bool[n, items, items]`
            where turns differ.
        offsets: n + 1 whole numbers; the steps of turn i are `satisfied[offsets[i]:offsets[i + 1]]`.
        delay: from 0 to 1.

    Raises:
        InvalidInputError: shapes do not fit, an item depends on itself, or `delay` is out of range.

    Example:
        >>> from agentrl_core import reward
        >>> made = reward.checklist([[False, False], [True, False], [True, True]], [[0, 0], [1, 0]], [0, 3])
        >>> made.earned.tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    verdicts = _marks(satisfied, "satisfied", (2,))
    needs = _marks(dependencies, "dependencies", (2, 3))
    items = verdicts.shape[1]
    if needs.shape[-2:] != (items, items):
        raise InvalidInputError(
            f"dependencies has shape {needs.shape}, but satisfied has {items} items; give [items, items]"
        )
    earned, backfilled, eligible = _core.reward_checklist(
        verdicts.ravel(), items, needs.ravel(), columns.integers(offsets, "offsets"), delay
    )
    shape = verdicts.shape
    return ChecklistRewards(earned.reshape(shape), backfilled.reshape(shape), eligible.reshape(shape))


def _marks(values: object, name: str, dimensions: tuple[int, ...]) -> NDArray[np.bool_]:
    """A table of booleans, or of 0 and 1."""
    table = columns.column(values, name, dimensions=dimensions)
    if table.dtype.kind not in "biu" or (table.size and (table.min() < 0 or table.max() > 1)):
        raise InvalidInputError(f"{name} has dtype {table.dtype}; give booleans, or 0 and 1")
    return table.astype(np.bool_)


def success_distance(
    embeddings: object,
    success: object,
    group_ids: object,
    *,
    radius: float = 0.5,
    min_samples: int = 2,
    ceiling: float = 0.6,
    slope: float = 10.0,
    valid: object | None = None,
) -> NDArray[np.float64]:
    """Partial credit for failures by how near they came to a success of their group. From SRPO, arXiv:2511.15605.

    1 for a success; for a failure ceiling * sigmoid(slope * (0.5 - d)), where d is its Euclidean distance to the
    nearest centre of the successes, from 0 for the group's nearest failure to 1 for its furthest. Centres are those of
    clusters of standardised successes (DBSCAN), or the mean of all successes where there is none.

    Args:
        embeddings: `[n, width]` numbers.
        success: n booleans.
        group_ids: n group ids.
        radius: of a neighbourhood, in standard deviations.
        min_samples: members that make a cluster, the point itself included.
        ceiling: a failure's reward stays below.
        slope: at least 0.
        valid: n booleans; rows that are False may hold anything, count nowhere and get 0. None: all rows are valid.

    Returns:
        `float64[n]`; failures of a group without a success get 0.

    Raises:
        InvalidInputError: shapes do not fit, a valid number is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core import reward
        >>> reward.success_distance([[0.0], [1.0], [3.0]], [True, False, False], [7, 7, 7]).round(3).tolist()
        [1.0, 0.596, 0.004]
    """
    places = columns.numbers(embeddings, "embeddings", dimensions=(2,)).astype(np.float64)
    count, width = places.shape
    won = columns.flags(success, "success", length=count)
    groups = columns.keys(group_ids, "group_ids", length=count)
    mask = columns.mask(valid, "valid", length=count)
    if mask is not None:
        # Rows that are not valid stand in a group of their own, in which there is no success.
        places = np.where(mask[:, None], places, 0.0)
        won = won & mask
        groups = columns.keys(np.where(mask, groups.astype(np.int64), -1), "group_ids")
    return _core.reward_success_distance(
        places.ravel(),
        width,
        won,
        groups,
        radius=radius,
        min_samples=min_samples,
        ceiling=ceiling,
        slope=slope,
    )
