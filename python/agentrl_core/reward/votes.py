"""Answers that mean the same, and what they vote for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns


class Clusters(NamedTuple):
    """Clusters of answers.

    Attributes:
        ids: `uint32[n]`, equal for equivalent answers of a group.
        parsed: `bool[n]`, False where there is no answer.
    """

    ids: NDArray[np.uint32]
    parsed: NDArray[np.bool_]


class Votes(NamedTuple):
    """What the answers of each group voted for.

    Attributes:
        share: `float64[n]`, the part of its group's votes that a row's cluster has; 0 without an answer.
        winner: `bool[n]`, whether a row's cluster has the most votes; of equal ones, that of the first row.
        entropy: `float64[G]`, -sum_c p_c ln p_c (semantic entropy).
        cluster_entropy: `float64[G]`, -mean_c ln p_c, each cluster once.
        clusters: `uint32[G]`, the number of clusters. Groups are in order of first appearance.
    """

    share: NDArray[np.float64]
    winner: NDArray[np.bool_]
    entropy: NDArray[np.float64]
    cluster_entropy: NDArray[np.float64]
    clusters: NDArray[np.uint32]


def answer_clusters(
    answers: Sequence[str | None], group_ids: object, *, equivalent: Callable[[str, str], bool] | None = None
) -> Clusters:
    """Put answers that mean the same into one cluster, greedily and in row order.

    An answer joins the first cluster of its group whose first member it is equivalent to, else it opens one (EMPO,
    arXiv:2504.05812). The predicate is asked once for each pair of different texts that has to be compared.

    Args:
        answers: n texts, None where an answer could not be parsed.
        group_ids: n group ids.
        equivalent: whether two answers mean the same; None: equal texts only.

    Raises:
        InvalidInputError: lengths differ, or an answer is neither a text nor None.

    Example:
        >>> from agentrl_core import reward
        >>> same = lambda a, b: float(a) == float(b)
        >>> reward.answer_clusters(["1", "1.0", None, "2"], ["g"] * 4, equivalent=same).ids.tolist()
        [0, 0, 1, 2]
    """
    if isinstance(answers, str) or not isinstance(answers, Iterable):
        raise InvalidInputError(f"answers is {type(answers).__name__}; give a list of texts, None without an answer")
    texts = list(answers)
    for row, answer in enumerate(texts):
        if answer is not None and not isinstance(answer, str):
            raise InvalidInputError(
                f"answers[{row}] is {type(answer).__name__}; give a text, or None without an answer"
            )
    groups = columns.keys(group_ids, "group_ids", length=len(texts)).tolist()
    representatives: dict[int, list[str]] = {}
    known: dict[tuple[int, str | None], str | None] = {}
    for group, answer in zip(groups, texts, strict=True):
        if (group, answer) in known:
            continue
        found = answer
        if answer is not None:
            firsts = representatives.setdefault(group, [])
            match = None if equivalent is None else next((first for first in firsts if equivalent(answer, first)), None)
            found = answer if match is None else match
            if match is None:
                firsts.append(answer)
        known[group, answer] = found
    named = [(group, known[group, answer]) for group, answer in zip(groups, texts, strict=True)]
    order: dict[tuple[int, str | None], int] = {}
    ids = np.array([order.setdefault(name, len(order)) for name in named], dtype=np.uint32)
    return Clusters(ids, np.array([answer is not None for answer in texts], dtype=np.bool_))


def cluster_votes(
    clusters: object,
    group_ids: object,
    *,
    parsed: object | None = None,
    weights: object | None = None,
    valid: object | None = None,
) -> Votes:
    """Shares, winners and entropies of the answers of each group.

    Shares are EMPO's reward (arXiv:2504.05812), winners TTRL's pseudo-label (arXiv:2504.16084), entropies the measure
    of SEED-GRPO (arXiv:2505.12346).

    Args:
        clusters: n ids of clusters (from `answer_clusters`, or texts themselves).
        group_ids: n group ids.
        parsed: n booleans; a row that is False has no answer, but its vote counts in the denominator.
        weights: n numbers of at least 0, the votes of rows (sequence probabilities, say); None: 1.
        valid: n booleans; rows that are False count nowhere. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, or a valid weight is negative or not finite.

    Example:
        >>> from agentrl_core import reward
        >>> reward.cluster_votes(["x", "x", "y"], [0, 0, 0]).winner.tolist()
        [True, True, False]
    """
    ids = columns.keys(clusters, "clusters")
    count = len(ids)
    mask = columns.mask(valid, "valid", length=count)
    votes = columns.optional_numbers(weights, "weights", length=count)
    answered = columns.mask(parsed, "parsed", length=count)
    if mask is not None:
        answered = mask if answered is None else answered & mask
        votes = np.where(mask, 1.0 if votes is None else votes, 0.0)
    made = _core.reward_cluster_votes(
        ids,
        columns.keys(group_ids, "group_ids", length=count),
        parsed=answered,
        weights=votes,
    )
    return Votes(made["share"], made["winner"], made["entropy"], made["cluster_entropy"], made["count"])
