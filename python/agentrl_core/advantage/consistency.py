"""Advantages of a group that agrees come from the other groups of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import _core
from agentrl_core.advantage.normalisation import Normalisation
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group, keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Consistency(BatchComponent):
    """advantage = a blend of a local and a global one, by how much the answers of the group differ.

    Source: COPO, arXiv:2508.04138.

    With H the entropy of the group's answers in bits, w = sigmoid(steepness * (H - threshold)):

        advantage_positive = (1 - w) * max(A_g, 0) + w * max(A_l, 0), and advantage_negative the same with min

    A_l compares the score with its group; A_g compares the group's mean score with those of the other groups, each
    group once. The two columns keep apart what the two losses clip apart; `advantage` is their sum. Draws that gave no
    answer (`answer_parsed` 0) are one cluster of their own. Draws without a score neither vote nor get a value.

    Args:
        steepness: k.
        threshold: b, in bits.
        mode: `soft`: w as above; `soft_with_zero`: w = 0 where the score is 0; `soft_with_forced`: w = 0 where A_l is
            0; `local`: w = 1; `global`: w = 0.
        coefficient: of the group's mean: 1 (`one`), or 1 - (1 - 1/n) / log2(n) * H with n draws (`entropy`).
        normalisation: how both advantages compare.

    Example:
        >>> from agentrl_core.advantage import Consistency
        >>> Consistency().makes
        (('draw', 'advantage'), ('draw', 'advantage_positive'), ('draw', 'advantage_negative'))
    """

    phase: ClassVar[str] = "advantage"

    steepness: float = 5.0
    threshold: float = 1.0
    mode: Literal["soft", "soft_with_zero", "soft_with_forced", "local", "global"] = "soft_with_zero"
    coefficient: Literal["one", "entropy"] = "one"
    normalisation: Normalisation = Normalisation()

    @property
    def needs(self) -> tuple[Column, ...]:
        """Score, group and answer of each draw."""
        return needed("draw", "score", "group_id", "answer_cluster", "answer_parsed")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw, and its parts by sign."""
        return needed("draw", "advantage", "advantage_positive", "advantage_negative")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the three columns on draws."""
        rows = Rows(batch, "draw")
        score, groups, valid = rows.values("score"), rows.keys("group_id"), rows.valid
        parsed = rows.flags("answer_parsed")
        # Draws without an answer share one id, behind those of the answers.
        answers = rows.keys("answer_cluster")
        clusters = np.where(parsed, answers, answers.max(initial=0) + 1).astype(np.uint32)
        votes = _core.reward_cluster_votes(keys.dense(clusters), groups, weights=valid.astype(np.float64))
        bits = (votes["entropy"] / np.log(2.0))[groups]
        found = group.statistics(score, groups, valid=valid)
        mean, count = found.mean[groups], found.count[groups].astype(np.float64)
        if self.coefficient == "entropy":
            several = np.maximum(count, 2.0)
            mean = mean * (1.0 - np.where(count > 1.0, (1.0 - 1.0 / several) / np.log2(several), 0.0) * bits)
        local = self.normalisation.compare(score, groups, valid=valid)
        everyone = self.normalisation.compare(mean, rows.keys("batch"), valid=valid, unit_ids=groups)
        share = 1.0 / (1.0 + np.exp(-self.steepness * (bits - self.threshold)))
        if self.mode == "soft_with_zero":
            share = np.where(score == 0.0, 0.0, share)
        elif self.mode == "soft_with_forced":
            share = np.where(local == 0.0, 0.0, share)
        elif self.mode != "soft":
            share = np.full(len(rows), 1.0 if self.mode == "local" else 0.0)
        positive = (1.0 - share) * np.maximum(everyone, 0.0) + share * np.maximum(local, 0.0)
        negative = (1.0 - share) * np.minimum(everyone, 0.0) + share * np.minimum(local, 0.0)
        return rows.write(advantage=positive + negative, advantage_positive=positive, advantage_negative=negative)
