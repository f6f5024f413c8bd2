"""SubPO: pay a step for what it adds to a set of things covered, which has diminishing returns (arXiv:2307.13372).

    r_t = F(s_0 .. s_{t+1}) - F(s_0 .. s_t),   A_t = sum over k >= t of r_k
    L = - mean over paths and steps of A_t log p_t

F is the number of different states of a trajectory, on top of what the environment pays for steps; other keys, such as
tools or documents, are `FirstVisits(key=...)`, and other set functions are the environment's, as rewards of
steps. The paper's baseline is open.

Equations:
    Read: the authors' code, the paper's abstract, and notes of others.

    - P1, marginal gain: `FirstVisits(of_next=True)` and the environment's rewards of steps.
    - C1, coverage: as P1; cells within reach of a state are the environment's.
    - C2, weight of an action: left out: the value of the whole path so far, over a bound; its expected gradient is that
      of the own gain, without what follows.
    - C3, loss: `Policy(surrogate=Reinforce())`, a mean over paths and steps, of actions of one token.
    - C4, items: left out: the set function belongs to the environment, as rewards of steps.
    - N1, return-to-go: `Discounted(column="step_score")`.

Differs:
    - Credit: the prefix's value in the code, the return-to-go of gains in the notes and here.
    - State after the last action: no step begins in it; what it adds is the environment's to pay.
    - Entropy bonus: its weight is 0 in the settings; none here.

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
    """Pay for what was not seen before: step_score += coefficient if a key occurs first in its draw.

    So a step is paid what it adds to F, the number of different keys that a trajectory has visited, a coverage
    function. The state of a step is the one before its action: with `of_next` a step is paid for the key of the next
    one, to which its action led, and the first key is not paid. `OutcomeScore(level="step")` begins the score of
    steps; one that is unknown counts 0. Source: submodular reinforcement learning, arXiv:2307.13372.

    Args:
        key: comma-joined step columns: what is covered, such as states, tools or documents.
        coefficient: of a first visit.
        of_next: whether the key of the next step counts; the last step of a draw has none.

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
        """Return `batch` with another column `step_score` on steps."""
        rows = Rows(batch, "step")
        visited = keys.composite(rows.draws, rows.keys(self.key))
        first = np.zeros(len(rows), dtype=np.bool_)
        first[np.unique(visited, return_index=True)[1]] = True
        if self.of_next:
            ahead, first = first, np.zeros(len(rows), dtype=np.bool_)
            first[:-1] = ahead[1:] & (rows.draws[1:] == rows.draws[:-1])
        scores = rows.values("step_score")
        return rows.write(step_score=np.where(first, np.nan_to_num(scores, nan=0.0) + self.coefficient, scores))


SUBPO = Recipe(
    name="subpo",
    source="arXiv:2307.13372",
    reward=(OutcomeScore(), OutcomeScore(level="step"), FirstVisits(of_next=True)),
    advantage=Discounted(column="step_score"),
    loss=Policy(clip=None, surrogate=Reinforce()),
)
