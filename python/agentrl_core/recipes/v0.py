"""V0: a value model that reads the policy's own results sets the number of rollouts of each task (arXiv:2602.03584).

A frozen model predicts the success rate p of the policy on a question that the policy has not answered before, from
results on other questions. The value model itself, the paper's main contribution, is left out: it is trained before the
RL, on results of many policies. Its predictions enter by `collector.annotate_tasks("prior", predictions)` before each
iteration. The rollouts of an iteration are allocated one by one, each to the question whose utility it raises most:

    U(B, p) = B (1 - p) (1 - (1 - p)^(B - 1)),

which is the expected number of failures in B rollouts of which at least one succeeds, a proxy for the size of GRPO's
gradient. A question gets 2 to 128 rollouts. The update is GRPO.

Equations:
    Read: notes on the paper, with its equations and a part of its appendix C, and the public code, which has no budget.
    The paper's text was not read.

    - 1, posterior predictive: left out: the value model; its predictions are the task column `prior`.
    - 7, ranking loss: left out: it trains the value model.
    - 8, training loss: left out: it trains the value model too.
    - N1, utility of B rollouts: `GreedyAllocator("failures")`; equation 10 of the paper.
    - N2, allocation: `GreedyAllocator(low=2, high=128)`; equation 9.

Differs:
    - Optimizer steps a batch: not stated; 1 here, so that the clip range does not act.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy
from agentrl_core.select import Candidates, ComposedSelector, GreedyAllocator, Tracker

if TYPE_CHECKING:
    from agentrl_core.component import State
    from agentrl_core.select import TaskOutcomes


@dataclass(frozen=True)
class PoolColumn(Tracker):
    """Read a number of each task from the pool, such as a success rate predicted by a model.

    Source: V0 arXiv:2602.03584 and V0.5 arXiv:2603.10848, whose value model annotates the pool.

    Args:
        by: column of the pool.

    Example:
        >>> from agentrl_core.recipes.v0 import PoolColumn
        >>> PoolColumn(by="prior").initial_state()
        {}
    """

    column: ClassVar[str] = "annotated"

    by: str = option(filled=True)

    def initial_state(self) -> State:
        """Return an empty state."""
        return {}

    def next(self, state: State, visits: TaskOutcomes) -> State:  # noqa: ARG002 - no update
        """Return the state unchanged."""
        return state

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:  # noqa: ARG002 - no state
        """Return the column's value of each candidate."""
        return candidates.column(self.by).astype(np.float64)


V0 = Recipe(
    name="v0",
    source="arXiv:2602.03584",
    select=ComposedSelector(track=PoolColumn("prior"), count=GreedyAllocator("failures")),
    advantage=GroupRelative(),
    loss=Policy(),
)
