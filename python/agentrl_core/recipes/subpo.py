"""SubPO: a step is paid for what it adds to a set of things covered, which has diminishing returns (arXiv:2307.13372).

    r_t = F(visited up to t) - F(visited before t),   A_t = sum over k >= t of r_k,   L = - mean_i sum_t A_t log p_t

F is the number of different states of a trajectory, on top of what the environment pays for steps; other keys, such as
tools or documents, are `FirstVisits(key=...)`, and other set functions are the environment's, as rewards of
steps. The paper's baseline is open.

Needs: states of steps (`Environment.state_key`), and rewards of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, keys
from agentrl_core.advantage import Discounted
from agentrl_core.component import BatchComponent, Column, Rows, column_name, step
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class FirstVisits(BatchComponent):
    """Pays for what was not seen before: step_score += coefficient where a key occurs first in its draw.

    So a step is paid what it adds to F, the number of different keys that a trajectory has visited, a coverage
    function. `OutcomeScore(level="step")` begins the score of steps; one that is unknown counts 0. Source: submodular
    reinforcement learning, arXiv:2307.13372.

    Args:
        key: comma-joined step columns: what is covered, such as states, tools or documents.
        coefficient: of a first visit.

    Raises:
        RecipeError: `key` is empty.

    Example:
        >>> from agentrl_core.recipes.subpo import FirstVisits
        >>> FirstVisits(coefficient=0.1).makes
        (step('step_score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (step("step_score"),)
    makes: ClassVar[tuple[Column, ...]] = (step("step_score"),)

    key: str = column_name("state_key", level="step")
    coefficient: float = 1.0

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `step_score` on steps."""
        rows = Rows(batch, "step")
        visited = keys.composite(rows.draws, rows.keys(self.key))
        first = np.zeros(len(rows), dtype=np.bool_)
        first[np.unique(visited, return_index=True)[1]] = True
        scores = rows.values("step_score")
        return rows.write(step_score=np.where(first, np.nan_to_num(scores, nan=0.0) + self.coefficient, scores))


SUBPO = Recipe(
    name="subpo",
    source="arXiv:2307.13372",
    reward=(OutcomeScore(), OutcomeScore(level="step"), FirstVisits()),
    advantage=Discounted(column="step_score"),
    loss=Policy(clip=None, surrogate=Reinforce(), aggregate="constant", constant=1.0),
)
