"""Scores without ground truth: clusters of equivalent answers, and majority votes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw
from agentrl_core.operators import group, keys
from agentrl_core.operators.votes import cluster_votes

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class AnswerAgreement(BatchComponent):
    """Score an answer without ground truth: its share of the votes of its group, or 1 if it is the majority answer.

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
