"""Dr. MAS: compare each agent of a team with itself in the other rollouts of the task (arXiv:2602.08847).

    A = (R - mean_k) / std_k over all steps Y_k of agent k in the group, std_k^2 the mean square
    L = - sum over agents k of mean over tasks of mean over Y_k of min(rho A, clip(rho, 0.8, 1.2) A)

rho is the ratio of a whole output. Agents whose rewards differ in mean and spread would have gradients of different
size under one baseline. An agent that was called more often votes more often, and its objective is no larger. The only
step of a key gets 0; the public code gives it its score: `singleton="raw"`. The code also has the spread of n - 1
(`ddof=1`) and a mean over all tokens with their own ratios: `DR_MAS.replace(loss=Policy(), weight=None)`. Prices on
invalid actions are the environment's.

Equations:
    Read: the paper's sections 3 and 4 and the public code.

    - 2, global advantage: what is replaced; `recipes.GRPO` has it.
    - 3, objective of an agent: `Policy("step_mean", ratio=Ratio("step", "sum"))` with `AgentShares`.
    - L, second moment: left out: a lemma about equation 2, nothing to compute.
    - 5, agent-wise advantage: `GroupRelative(level="step", group_by="group_id,agent", ddof=0)`.
    - C1, in the code: an option, `ddof=1`; a key of one row is 0 here, and its reward in the code.
    - C2, invalid actions: left out: the price belongs to the environment.

Differs:
    - Optimizer steps a batch: 5 for search, by notes, and here; 1 for mathematics.
    - Policies: left out, one for each agent in some runs; all agents train one policy here, by the sum of their
      objectives, so that each term is that of its agent.
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
    """Makes a mean over all steps the sum over agents of their means over tasks, each over the agent's steps.

    weight = S / (G_k |Y_k|): S steps in all, |Y_k| of agent k in the group, G_k groups in which it acts. Steps of draws
    without a score get 0 and do not count.

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
        own = np.bincount(calls, weights=counted)
        acting = np.zeros(int(agents.max(initial=0)) + 1)
        found, first = np.unique(calls, return_index=True)
        np.add.at(acting, agents[first], own[found] > 0)
        shares = np.divide(counted.sum(), own[calls] * acting[agents], out=np.zeros(len(rows)), where=counted)
        return rows.scale(shares)


DR_MAS = Recipe(
    name="dr_mas",
    source="arXiv:2602.08847",
    advantage=GroupRelative(level="step", group_by="group_id,agent", ddof=0),
    weight=AgentShares(),
    loss=Policy("step_mean", ratio=Ratio("step", "sum")),
    minibatches=5,
)
