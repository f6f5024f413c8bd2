"""Cluster equal answers of a group, and count their votes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns


class Clusters(NamedTuple):
    """Clusters of equivalent answers, by row.

    Attributes:
        ids: `uint32[n]`, equal for equivalent answers of a group.
        parsed: `bool[n]`, False for rows without an answer.
    """

    ids: NDArray[np.uint32]
    parsed: NDArray[np.bool_]


class Votes(NamedTuple):
    """Votes of the answers of each group.

    Attributes:
        share: `float64[n]`, share of its group's votes for a row's cluster; 0 without an answer.
        winner: `bool[n]`, whether a row's cluster has the most votes; ties: that of the first row.
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
    """Cluster equivalent answers, greedily and in row order.

    An answer joins the first cluster of its group whose first member is equivalent; otherwise it opens a new one (EMPO,
    arXiv:2504.05812). The predicate is called once for each compared pair of different texts.

    Args:
        answers: n texts; None if an answer could not be parsed.
        group_ids: n group ids.
        equivalent: predicate of two answers; None: equal texts only.

    Raises:
        InvalidInputError: lengths differ, or an answer is neither a text nor None.

    Example:
        >>> from agentrl_core.operators.votes import answer_clusters
        >>> same = lambda a, b: float(a) == float(b)
        >>> answer_clusters(["1", "1.0", None, "2"], ["g"] * 4, equivalent=same).ids.tolist()
        [0, 0, 1, 2]
    """
    if isinstance(answers, str) or not isinstance(answers, Iterable):
        raise InvalidInputError(
            f"answers is {type(answers).__name__}; give a list of texts, with None for a missing answer"
        )
    texts = list(answers)
    groups = columns.keys(group_ids, "group_ids", length=len(texts), first="answers")
    ids, parsed = _core.reward.answer_ids(texts, groups)
    return Clusters(ids if equivalent is None else _merged(texts, groups, ids, equivalent), parsed)


def _merged(
    texts: list[str | None],
    groups: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    equivalent: Callable[[str, str], bool],
) -> NDArray[np.uint32]:
    """Return ids of answers, equal for equal texts and for equivalent ones."""
    openers: dict[int, list[tuple[str, int]]] = {}
    clusters: list[int] = []
    opened = 0
    for row in np.unique(ids, return_index=True)[1].tolist():
        answer, known = texts[row], openers.setdefault(int(groups[row]), [])
        cluster_number = None
        if answer is not None:
            cluster_number = next((cluster for first, cluster in known if equivalent(answer, first)), None)
        if cluster_number is None:
            cluster_number = opened
            opened += 1
            if answer is not None:
                known.append((answer, cluster_number))
        clusters.append(cluster_number)
    return np.array(clusters, np.uint32)[ids]


def cluster_votes(
    clusters: object,
    group_ids: object,
    *,
    parsed: object | None = None,
    weights: object | None = None,
    valid: object | None = None,
) -> Votes:
    """Compute shares, winners and entropies of the answers of each group.

    Shares are EMPO's reward (arXiv:2504.05812), winners TTRL's pseudo-label (arXiv:2504.16084), entropies the measure
    of SEED-GRPO (arXiv:2505.12346).

    Args:
        clusters: n ids of clusters (from `answer_clusters`, or texts themselves).
        group_ids: n group ids.
        parsed: n booleans; a row that is False has no answer, but its vote counts in the denominator.
        weights: n numbers of at least 0, the votes of rows, such as sequence probabilities; None: 1.
        valid: n booleans; rows that are False are ignored. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, or a valid weight is negative or not finite.

    Example:
        >>> from agentrl_core.operators.votes import cluster_votes
        >>> cluster_votes(["x", "x", "y"], [0, 0, 0]).winner.tolist()
        [True, True, False]
    """
    ids = columns.keys(clusters, "clusters")
    count = len(ids)
    votes = columns.optional_numbers(weights, "weights", length=count, first="clusters")
    answered = columns.mask(parsed, "parsed", length=count, first="clusters")
    if valid is not None:
        mask = columns.flags(valid, "valid", length=count, first="clusters")
        answered = mask if answered is None else answered & mask
        votes = np.where(mask, 1.0 if votes is None else votes, 0.0)
    groups = columns.keys(group_ids, "group_ids", length=count, first="clusters")
    return Votes(*_core.reward.cluster_votes(ids, groups, answered, votes))
