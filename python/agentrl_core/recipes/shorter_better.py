"""ShorterBetter: penalise the difference in length to the group's shortest right answer (arXiv:2504.21370).

With l* the length of the shortest right answer of the group, or the mean length of all answers if none is right, the
score of an answer of length l is alpha [right] - beta |l - l*|. Scores are compared as in GRPO. A length is a number of
trained tokens.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, sample optimal length: `OptimalLength`.
    - C2, reward: `OutcomeScore(success=2.0, failure=0.0)` and `OptimalLength(coefficient=0.001)`.
    - C3, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it; a group of one has 0 here, and its reward in
      the code (`singleton="raw"`).
    - C4, loss: `Policy`, clip range 0.2, mean over tokens, `KL(0.001)`.

Differs:
    - Length: of the whole response in the code, which has no tools; of the trained tokens here.

Needs: the model `reference`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class OptimalLength(BatchComponent):
    """Subtract from the score a penalty for the difference in length to the group's shortest right answer.

        score - coefficient * |length - l*|

    l* is the length of the group's shortest draw that succeeded, or the mean length of all its draws if none did.
    Draws without a score do not count and get no score.

    Args:
        coefficient: penalty of each token of distance from l*.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.shorter_better import OptimalLength
        >>> OptimalLength().needs
        (draw('score'), draw('success'), draw('group_id'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    coefficient: float = option(0.001, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the penalty subtracted from the column `score` of draws."""
        rows = Rows(batch, "draw")
        groups, lengths = rows.keys("group_id"), rows.trained
        right = rows.valid & rows.flags("success")
        of_all = group.statistics(lengths, groups, valid=rows.valid)
        of_right = group.statistics(lengths, groups, valid=right)
        best = np.where(of_right.count > 0, of_right.least, of_all.mean)[groups]
        return rows.write(score=rows.values("score") - self.coefficient * np.abs(lengths - best))


SHORTER_BETTER = Recipe(
    name="shorter_better",
    source="arXiv:2504.21370",
    reward=(OutcomeScore(success=2.0, failure=0.0), OptimalLength()),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.2), kl=KL(0.001)),
    minibatches=8,
)
