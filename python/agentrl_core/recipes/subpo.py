"""SubPO: reward a step for its gain in a coverage function, which has diminishing returns (arXiv:2307.13372).

    r_t = F(s_0 .. s_{t+1}) - F(s_0 .. s_t),   A_t = sum over k >= t of r_k
    L = - mean over paths and steps of A_t log p_t

F is the number of different states of a trajectory; its gains are added to the environment's rewards of steps. Use
`FirstVisits(key=...)` for other keys, such as tools or documents. The environment computes other set functions, as
rewards of steps. The sources do not specify the paper's baseline.

Equations:
    Read: the authors' code, the paper's abstract, and third-party notes.

    - P1, marginal gain: `FirstVisits(of_next=True)` and the environment's rewards of steps.
    - C1, coverage: as P1; the environment computes the cells within reach of a state.
    - C2, weight of an action: left out: the value of the whole path so far, divided by a bound; its expected gradient
      is the gradient of the action's own gain, without later gains.
    - C3, loss: `Policy(surrogate=Reinforce())`, a mean over paths and steps, for actions of one token.
    - C4, items: left out: the set function belongs to the environment, as rewards of steps.
    - N1, return-to-go: `Discounted(column="step_score")`.

Differs:
    - Credit: the value of the path so far in the code, the return-to-go of gains in the notes and here.
    - State after the last action: no step begins in it; the environment must reward its gain.
    - Entropy bonus: its weight is 0 in the settings of the code; none here.

Needs: states of steps (`Episode.state_key`), and rewards of steps.
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
    """Reward first visits: step_score += coefficient if a key occurs for the first time in its draw.

    The reward of a step is its gain in F, the number of different keys that the trajectory has visited, a coverage
    function. The state of a step is the state before its action. With `of_next` a step is rewarded for the key of the
    next step, which its action led to, and the first key is not rewarded. `OutcomeScore(level="step")` creates the
    column `step_score`; an unknown score counts as 0 at a first visit. Source: submodular reinforcement learning,
    arXiv:2307.13372.

    Args:
        key: comma-joined step columns whose values are covered, such as states, tools or documents.
        coefficient: reward of a first visit.
        of_next: whether the key of the next step counts; the last step of a draw has no next step.

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
    of_next: bool = False

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new column `step_score` on steps."""
        rows = Rows(batch, "step")
        visited = keys.composite(rows.draws, rows.keys(self.key))
        first = np.zeros(len(rows), dtype=np.bool_)
        first[np.unique(visited, return_index=True)[1]] = True
        if self.of_next:
            first_visits, first = first, np.zeros(len(rows), dtype=np.bool_)
            first[:-1] = first_visits[1:] & (rows.draws[1:] == rows.draws[:-1])
        scores = rows.values("step_score")
        return rows.write(step_score=np.where(first, np.nan_to_num(scores, nan=0.0) + self.coefficient, scores))


SUBPO = Recipe(
    name="subpo",
    source="arXiv:2307.13372",
    reward=(OutcomeScore(), OutcomeScore(level="step"), FirstVisits(of_next=True)),
    advantage=Discounted(column="step_score"),
    loss=Policy(clip=None, surrogate=Reinforce()),
)
