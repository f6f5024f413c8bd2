"""Dr. MAS: compare each agent of a team only with itself, over the rollouts of a task (arXiv:2602.08847).

    A = (R - mean_k) / std_k over all steps Y_k of agent k in the group, std_k^2 the mean square
    L = - sum over agents k of mean over tasks of mean over Y_k of min(rho A, clip(rho, 0.8, 1.2) A)

rho is the importance ratio of a whole output. With one baseline for all agents, agents whose rewards differ in mean and
spread would have gradients of different size. If an agent is called more often in a rollout, this rollout votes more
often in the agent's statistics, but the objective of the agent is not larger. If an agent has a single step in a group,
its advantage is 0; the public code uses its score as the advantage: `singleton="raw"`. The code also divides by the std
with divisor n - 1 (`ddof=1`), and averages over all tokens with one ratio for each: `DR_MAS.replace(loss=Policy(),
weight=None)`. Penalties for invalid actions belong to the environment.

Equations:
    Read: the paper's sections 3 and 4 and the public code.

    - 2, global advantage: the form that the paper replaces; `recipes.GRPO` has it.
    - 3, objective of an agent: `Policy("step_mean", ratio=Ratio("step", "sum"))` with `AgentShares`.
    - L, second moment: left out: a lemma about equation 2, nothing to compute.
    - 5, agent-wise advantage: `GroupRelative(level="step", group_by="group_id,agent", ddof=0)`.
    - C1, in the code: an option, `ddof=1`; the single step of an agent has advantage 0 here, and its reward in the
      code.
    - C2, invalid actions: left out: the penalty belongs to the environment.

Differs:
    - Optimizer steps a batch: 5 for search, according to notes, and here; 1 for mathematics.
    - Policies: left out, one policy for each agent, as in some runs of the paper. Here all agents train one policy on
      the sum of their objectives, in which each term belongs to one agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, step
from agentrl_core.loss import Policy, Ratio

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class AgentShares(BatchComponent):
    """Weigh steps so that the mean over all steps becomes the sum of the objectives of all agents.

    The objective of an agent is the mean over tasks of the mean over its steps. So weight = S / (G_k |Y_k|), with S the
    number of all steps, |Y_k| the number of steps of agent k in the group, and G_k the number of groups in which it
    acts. Steps of draws without a score get 0 and do not count.

    Example:
        >>> from agentrl_core.recipes.dr_mas import AgentShares
        >>> AgentShares().makes
        (step('weight'),)
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (step("weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `weight` on steps."""
        rows = Rows(batch, "step")
        counted = rows.valid & (rows.trained > 0)
        calls, agents = rows.keys("group_id,agent"), rows.keys("agent")
        counts = np.bincount(calls, weights=counted)
        acting = np.zeros(int(agents.max(initial=0)) + 1)
        unique_calls, first = np.unique(calls, return_index=True)
        np.add.at(acting, agents[first], counts[unique_calls] > 0)
        shares = np.divide(counted.sum(), counts[calls] * acting[agents], out=np.zeros(len(rows)), where=counted)
        return rows.scale(shares)


DR_MAS = Recipe(
    name="dr_mas",
    source="arXiv:2602.08847",
    advantage=GroupRelative(level="step", group_by="group_id,agent", ddof=0),
    weight=AgentShares(),
    loss=Policy("step_mean", ratio=Ratio("step", "sum")),
    minibatches=5,
)
