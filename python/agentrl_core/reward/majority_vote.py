"""Scores without ground truth: clusters of equivalent answers, and majority votes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns, group, keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class AnswerAgreement(BatchComponent):
    """Score an answer by how many answers of its group agree with it, if no ground truth is known.

    score = share of the group's votes for the answer's cluster, or 1 if that cluster has the most votes. The column
    `answer_cluster` has equal numbers for equivalent answers. A draw whose `answer_parsed` is 0 has no answer: it
    scores 0, and its vote counts for no cluster. It also makes `semantic_entropy`, -sum_c p_c ln p_c of the group's
    clusters, in nats. Sources: EMPO arXiv:2504.05812 (`share`); TTRL arXiv:2504.16084, ETTRL arXiv:2508.11356
    (`majority`).

    Args:
        kind: `share`, or `majority`: 1 in the cluster with the most votes (ties: that of the first draw).
        voters: name of a draw column of 0 and 1 for the draws that vote; empty: all vote.
        all_distinct_zero: with `share`, whether a group without two equal answers scores 0.

    Example:
        >>> from agentrl_core.reward import AnswerAgreement
        >>> AnswerAgreement().makes
        (draw('score'), draw('semantic_entropy'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("answer_cluster"), draw("answer_parsed"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"), draw("semantic_entropy"))

    kind: Literal["share", "majority"] = "share"
    voters: str = column_name("", level="draw", optional=True)
    all_distinct_zero: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `score` and `semantic_entropy` on draws."""
        rows = Rows(batch, "draw")
        answers, groups, parsed = rows.keys("answer_cluster"), rows.keys("group_id"), rows.flags("answer_parsed")
        votes = rows.flags(self.voters).astype(np.float64) if self.voters else np.ones(len(rows))
        result = cluster_votes(answers, groups, parsed=parsed, weights=votes)
        if self.kind == "majority":
            scores = result.winner.astype(np.float64)
        else:
            scores = result.share
            if self.all_distinct_zero:
                clusters = keys.composite(groups, answers)
                voices = group.sums((parsed & (votes > 0.0)).astype(np.float64), clusters)[clusters]
                agree = group.statistics(voices, groups).most[groups] > 1.0
                scores = np.where(agree, scores, 0.0)
        return rows.write(score=scores, semantic_entropy=result.entropy[groups])


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
        >>> from agentrl_core.reward.majority_vote import answer_clusters
        >>> same = lambda a, b: float(a) == float(b)
        >>> answer_clusters(["1", "1.0", None, "2"], ["g"] * 4, equivalent=same).ids.tolist()
        [0, 0, 1, 2]
    """
    if isinstance(answers, str) or not isinstance(answers, Iterable):
        raise InvalidInputError(
            f"answers is {type(answers).__name__}; give a list of texts, with None for a missing answer"
        )
    texts = list(answers)
    groups = columns.keys(group_ids, "group_ids", length=len(texts))
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
        >>> from agentrl_core import reward
        >>> reward.cluster_votes(["x", "x", "y"], [0, 0, 0]).winner.tolist()
        [True, True, False]
    """
    ids = columns.keys(clusters, "clusters")
    count = len(ids)
    votes = columns.optional_numbers(weights, "weights", length=count)
    answered = columns.mask(parsed, "parsed", length=count)
    if valid is not None:
        mask = columns.flags(valid, "valid", length=count)
        answered = mask if answered is None else answered & mask
        votes = np.where(mask, 1.0 if votes is None else votes, 0.0)
    groups = columns.keys(group_ids, "group_ids", length=count)
    return Votes(*_core.reward.cluster_votes(ids, groups, answered, votes))
