"""Scores without a judge: how many of the group's answers agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group, keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class AnswerAgreement(BatchComponent):
    """score = share of the group's votes that the answer's cluster has, or whether that cluster has the most.

    The column `answer_cluster` numbers the answers that mean the same; a draw whose `answer_parsed` is 0 gave none: it
    scores 0, and its vote goes to nobody. Also made: `semantic_entropy`, -sum_c p_c ln p_c of the group's clusters, in
    nats. Sources: EMPO arXiv:2504.05812 (`share`); TTRL arXiv:2504.16084, ETTRL arXiv:2508.11356 (`majority`).

    Args:
        rule: `share`, or `majority`: 1 in the cluster with the most votes (of equal ones, that of the first draw).
        voters: name of a draw column of 0 and 1, the draws that vote; empty: all do.
        all_distinct_zero: with `share`, a group in which no two answers agree scores 0.

    Example:
        >>> from agentrl_core.reward import AnswerAgreement
        >>> AnswerAgreement().makes
        (('draw', 'score'), ('draw', 'semantic_entropy'))
    """

    phase: ClassVar[str] = "reward"

    rule: Literal["share", "majority"] = "share"
    voters: str = ""
    all_distinct_zero: bool = True

    @property
    def needs(self) -> tuple[Column, ...]:
        """The clusters of answers, and who votes."""
        return needed("draw", "answer_cluster", "answer_parsed", "group_id", *((self.voters,) if self.voters else ()))

    @property
    def makes(self) -> tuple[Column, ...]:
        """Score and semantic entropy of each draw."""
        return needed("draw", "score", "semantic_entropy")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `score` and `semantic_entropy` on draws."""
        rows = Rows(batch, "draw")
        groups = rows.keys("group_id")
        parsed = rows.flags("answer_parsed")
        votes = rows.flags(self.voters).astype(np.float64) if self.voters else np.ones(len(rows))
        found = _core.reward_cluster_votes(rows.keys("answer_cluster"), groups, parsed=parsed, weights=votes)
        if self.rule == "majority":
            score = found["winner"].astype(np.float64)
        else:
            score = found["share"]
            if self.all_distinct_zero:
                clusters = keys.composite(groups, rows.keys("answer_cluster"))
                voices = group.sums((parsed & (votes > 0.0)).astype(np.float64), clusters)[clusters]
                agree = group.statistics(voices, groups).most[groups] > 1.0
                score = np.where(agree, score, 0.0)
        return rows.write(score=score, semantic_entropy=found["entropy"][groups])
