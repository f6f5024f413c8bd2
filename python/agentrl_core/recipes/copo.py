"""COPO: blend advantages within the group and over the batch by the agreement of answers (arXiv:2508.04138).

COPO adds a local and a global loss, which are clipped separately. This equals one loss with two advantage columns,
which is computed like the loss of a token that two branches of a tree share: A_positive = (1 - w) max(A_g, 0) + w
max(A_l, 0), and A_negative the same with min. Both losses have a dual clip; the public code uses verl's, 3.

Equations:
    Read: the abstract and the code.

    - C1, consistency entropy: `Consistency`, from the clusters of answers, in bits.
    - C2, global reward: `Consistency`; the variant with a coefficient is the option `coefficient="entropy"`.
    - C3, global advantage: `Consistency`; each group votes once.
    - C4, local advantage: `Consistency`.
    - C5, weight of the local loss: `Consistency(steepness=5.0, threshold=1.0, kind="soft_with_zero")`.
    - C6, loss: `Policy(clip=Clip(dual=3.0), aggregate="sequence_mean")`.

Differs:
    - Answers of reward 0: the abstract blends the losses of all answers in the same way, `Consistency(kind="soft")`;
      the authors' script gives answers of reward 0 the global loss alone, as here. It is open which of the two the
      paper's equations use.
    - A group of one: its local advantage is its reward in the code, 0 here;
      `Consistency(normalisation=Normalisation(singleton="raw"))` follows the code.
    - Added to a share of answers in the logarithm: 1e-8 in the code, nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import Normalisation
from agentrl_core.component import BatchComponent, Column, Rows, draw
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward import cluster_votes

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Consistency(BatchComponent):
    """Compare a task with other tasks of the batch if the answers of its group agree, to keep a training signal.

    The advantage is a blend of a local and a global one, weighted by how much the answers of the group differ. With H
    the entropy of the group's answers in bits, w = sigmoid(steepness * (H - threshold)):

        advantage_positive = (1 - w) * max(A_g, 0) + w * max(A_l, 0), and advantage_negative the same with min

    A_l compares the score with its group; A_g compares the group's mean score with the means of the other groups,
    each group once. There are two columns because the two losses are clipped separately; `advantage` is their sum.
    Draws without an answer (`answer_parsed` 0) form one cluster of their group. Draws without a score neither vote
    nor get a value.

    Args:
        steepness: k, the steepness of the sigmoid.
        threshold: b, the entropy at which w is 1/2, in bits.
        kind: `soft`: w as above; `soft_with_zero`: w = 0 if the score is 0; `soft_with_forced`: w = 0 if A_l is 0;
            `local`: w = 1; `global`: w = 0.
        coefficient: factor of the group's mean score: 1 (`one`), or 1 - (1 - 1/n) / log2(n) * H with n draws
            (`entropy`).
        normalisation: how scores and group means are compared.

    Example:
        >>> from agentrl_core.recipes.copo import Consistency
        >>> Consistency().makes
        (draw('advantage'), draw('advantage_positive'), draw('advantage_negative'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("score"),
        draw("group_id"),
        draw("answer_cluster"),
        draw("answer_parsed"),
    )
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("advantage_positive"), draw("advantage_negative"))

    steepness: float = 5.0
    threshold: float = 1.0
    kind: Literal["soft", "soft_with_zero", "soft_with_forced", "local", "global"] = "soft_with_zero"
    coefficient: Literal["one", "entropy"] = "one"
    normalisation: Normalisation = Normalisation()

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the three advantage columns on draws."""
        rows = Rows(batch, "draw")
        score, groups, valid = rows.values("score"), rows.keys("group_id"), rows.valid
        parsed = rows.flags("answer_parsed")
        # Draws without an answer share one id, after the ids of the answers.
        answers = rows.keys("answer_cluster")
        clusters = np.where(parsed, answers, answers.max(initial=0) + 1).astype(np.uint32)
        entropy = cluster_votes(clusters, groups, weights=valid.astype(np.float64)).entropy
        bits = (entropy / np.log(2.0))[groups]
        of_group = group.statistics(score, groups, valid=valid)
        mean, count = of_group.mean[groups], of_group.count[groups].astype(np.float64)
        if self.coefficient == "entropy":
            group_size = np.maximum(count, 2.0)
            mean = mean * (1.0 - np.where(count > 1.0, (1.0 - 1.0 / group_size) / np.log2(group_size), 0.0) * bits)
        local_advantage = self.normalisation.compare(score, groups, valid=valid)
        global_advantage = self.normalisation.compare(mean, rows.keys("batch"), valid=valid, voter_ids=groups)
        share = 1.0 / (1.0 + np.exp(-self.steepness * (bits - self.threshold)))
        if self.kind == "soft_with_zero":
            share = np.where(score == 0.0, 0.0, share)
        elif self.kind == "soft_with_forced":
            share = np.where(local_advantage == 0.0, 0.0, share)
        elif self.kind != "soft":
            share = np.full(len(rows), 1.0 if self.kind == "local" else 0.0)
        positive = (1.0 - share) * np.maximum(global_advantage, 0.0) + share * np.maximum(local_advantage, 0.0)
        negative = (1.0 - share) * np.minimum(global_advantage, 0.0) + share * np.minimum(local_advantage, 0.0)
        return rows.write(advantage=positive + negative, advantage_positive=positive, advantage_negative=negative)


COPO = Recipe(
    name="copo",
    source="arXiv:2508.04138",
    advantage=Consistency(),
    loss=Policy(clip=Clip(dual=3.0), aggregate="sequence_mean"),
    minibatches=16,
)
