"""Dr. MAS: compare each agent of a team with itself in the other rollouts of the task (arXiv:2602.08847).

    A = (R - mean) / (std + 1e-6) over all steps of the same agent in the group

Agents whose rewards differ in mean and spread would have gradients of different size under one baseline. An agent that
was called more often votes more often. The only step of a key gets 0; the public code gives it its score:
`singleton="raw"`. Prices on invalid actions are the environment's.

Equations:
    Read: the paper's sections 3.2 to 4.2 and the public code.

    - 2, global advantage: what is replaced; `recipes.GRPO` has it.
    - 3, objective of an agent: an option, `Policy("step_mean", ratio=Ratio("step", "sum"))`; ratios of tokens and the
      mean over tokens here, as in the code.
    - L, second moment: left out: a lemma about equation 2, nothing to compute.
    - 5, agent-wise advantage: `GroupRelative(level="step", group_by="group_id,agent")`; over n it is `ddof=0`.
    - C1, in the code: the std of n - 1 and 1e-6 added to it; a key of one row is 0 here, and its reward in the code.
    - C2, invalid actions: left out: the price belongs to the environment.

Differs:
    - Optimizer steps a batch: 5 for search and 1 for mathematics, by notes; 1 here.
    - Policies: left out, one for each agent in some runs; all agents train one policy here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

DR_MAS = Recipe(
    name="dr_mas",
    source="arXiv:2602.08847",
    advantage=GroupRelative(level="step", group_by="group_id,agent"),
    loss=Policy(),
)
