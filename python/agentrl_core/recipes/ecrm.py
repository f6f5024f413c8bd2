"""ECRM: maximise the mean of all scores together with the mean of the worst scores (arXiv:2301.10932).

    R' = R / 2 + (q - max(q - R, 0) / 0.25) / 2,   q = the 0.25-quantile of the group,   A = R' - mean R'

    L = - mean over rollouts of A sum_t log p_t

The mean of the second part of R' is the conditional value at risk. The loss is REINFORCE: it has no ratio, no clip
range and no division by the length. The paper learns a quantile for every state of a control task; here the quantile
of the group replaces it. Risk at each step is left out, since rollouts have one score.

Equations:
    Read: the abstract and third-party notes; the paper's text was not read.

    - N1, risk-averse transform: `RiskAverse`, with the interpolated quantile of the group.
    - N2, what the mean is: the mean of the scores that `RiskAverse` returns.
    - N3, measure over steps: left out: it needs a learned quantile for each step.
    - N5, policy gradient: `Policy(surrogate=Reinforce())`, the sum over the tokens, the mean over rollouts.
    - N4, risk-seeking mirror: left out: it is an idea of the notes, not of the paper, which is risk-averse.

Differs:
    - Quantile: learned for each step in the paper, computed from the group here.
    - Share and coefficient: not stated; 0.25 and 0.5 here, from the notes.
    - Aim: the paper minimises costs; this recipe maximises scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class RiskAverse(BatchComponent):
    """Replace a part of the score by its tail risk, so that the worst draws of a group count more than the best.

    score <- (1 - coefficient) * r + coefficient * (q - max(q - r, 0) / quantile), with q the quantile of the group.
    The mean of the second part is the mean of the worst scores of the group (conditional value at risk). Group
    quantiles replace the quantiles that ECRM (arXiv:2301.10932) learns for every state. Draws without a score neither
    vote nor get one.

    Args:
        coefficient: weight of the second part.
        quantile: share of the scores that count as the worst.
        group_by: comma-joined key columns of the groups, or `batch`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ecrm import RiskAverse
        >>> RiskAverse(coefficient=1.0).needs
        (draw('score'), draw('group_id'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    coefficient: float = option(0.5, at_least=0, at_most=1)
    quantile: float = option(0.25, above=0, at_most=1)
    group_by: str = column_name("group_id", level="draw")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new column `score` on draws."""
        rows = Rows(batch, "draw")
        scores, groups = rows.values("score"), rows.keys(self.group_by)
        bounds = group.quantile(scores, groups, self.quantile, valid=rows.valid)[groups]
        tails = bounds - np.maximum(bounds - scores, 0.0) / self.quantile
        return rows.write(score=(1.0 - self.coefficient) * scores + self.coefficient * tails)


ECRM = Recipe(
    name="ecrm",
    source="arXiv:2301.10932",
    reward=(OutcomeScore(), RiskAverse()),
    advantage=GroupRelative(scale="none"),
    loss=Policy(clip=None, surrogate=Reinforce(), aggregate="constant", constant=1.0),
)
