"""Rewards of steps: information gain, implicit rewards and checklists."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns


class ChecklistRewards(NamedTuple):
    """Rewards of checklist items at each step.

    Attributes:
        earned: `float64[steps, items]`, at most one positive entry for an item of a turn.
        backfilled: `float64[steps, items]`, the same at every eligible step before the item was earned.
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
    kind: Literal["probability", "log_probability"] = "probability",
) -> NDArray[Any]:
    """Gain of each step in the likelihood of the right answer: g_k = P_k - P_{k-1}. From IGPO, arXiv:2510.14967.

    P is exp(l) or l, with l_k the mean log-probability of the answer's tokens appended after step k.

    Args:
        answer_logprobs: l_k of every step, trajectory after trajectory.
        offsets: n + 1 whole numbers; the steps of trajectory i are `answer_logprobs[offsets[i]:offsets[i + 1]]`.
        before: n numbers, l before the first step.
        kind: the difference of probabilities, or of log-probabilities (the newer public script).

    Returns:
        As long as `answer_logprobs`; float32 if it is, else float64.

    Raises:
        InvalidInputError: lengths differ, or a log-probability is above 0 or not finite.

    Example:
        >>> from agentrl_core.operators.process_rewards import information_gain
        >>> information_gain([-2.0, -1.0], [0, 2], [-2.5], kind="log_probability").tolist()
        [0.5, 1.0]
    """
    logprobs = columns.numbers(answer_logprobs, "answer_logprobs")
    gains = _core.reward.information_gain(
        columns.doubles(logprobs, "answer_logprobs"),
        columns.integers(offsets, "offsets"),
        columns.doubles(before, "before"),
        kind,
    )
    return columns.like(gains, logprobs)


def implicit_rewards(
    logprobs: object, reference_logprobs: object, *, beta: float = 0.05, offsets: object | None = None
) -> NDArray[Any]:
    """Implicit rewards of a model: beta * (log pi(token) - log pi_ref(token)), of tokens or summed over rows.

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
        >>> from agentrl_core.operators.process_rewards import implicit_rewards
        >>> implicit_rewards([-1.0, -2.0, -1.0], [-2.0, -1.0, -3.0], beta=0.5, offsets=[0, 2, 3]).tolist()
        [0.0, 1.0]
    """
    policy_logprobs = columns.numbers(logprobs, "logprobs")
    rewards = _core.reward.implicit(
        columns.doubles(policy_logprobs, "logprobs"),
        columns.doubles(reference_logprobs, "reference_logprobs", length=len(policy_logprobs), first="logprobs"),
        None if offsets is None else columns.integers(offsets, "offsets"),
        beta,
    )
    return columns.like(rewards, policy_logprobs)


def checklist(satisfied: object, dependencies: object, offsets: object, *, delay: float = 1.0) -> ChecklistRewards:
    """Credit the items of a checklist to the steps of turns. From CM2, arXiv:2602.12268.

    An item is eligible at a step if the items it depends on were satisfied before the step and it was not; the first
    step after which it is satisfied earns it, if it was eligible there, times delay ** (steps it was eligible before).

    Args:
        satisfied: `bool[steps, items]`, the verdicts after each step, turn after turn.
        dependencies: `bool[items, items]`, True if the row's item depends on the column's; `bool[n, items, items]` if
            turns differ.
        offsets: n + 1 whole numbers; the steps of turn i are `satisfied[offsets[i]:offsets[i + 1]]`.
        delay: from 0 to 1.

    Raises:
        InvalidInputError: shapes do not fit, an item depends on itself, or `delay` is out of range.

    Example:
        >>> from agentrl_core.operators.process_rewards import checklist
        >>> rewards = checklist([[False, False], [True, False], [True, True]], [[0, 0], [1, 0]], [0, 3])
        >>> rewards.earned.tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    verdicts = columns.marks(satisfied, "satisfied", dimensions=(2,))
    needs = columns.marks(dependencies, "dependencies", dimensions=(2, 3))
    items = verdicts.shape[1]
    if needs.shape[-2:] != (items, items):
        raise InvalidInputError(
            f"dependencies has shape {needs.shape}, but satisfied has {items} items (columns); give an array "
            f"whose shape ends in ({items}, {items})"
        )
    earned, backfilled, eligible = _core.reward.checklist(
        verdicts.ravel(), items, needs.ravel(), columns.integers(offsets, "offsets"), delay
    )
    shape = verdicts.shape
    return ChecklistRewards(earned.reshape(shape), backfilled.reshape(shape), eligible.reshape(shape))
