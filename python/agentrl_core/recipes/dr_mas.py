"""Dr. MAS: compare each agent of a team with itself in the other rollouts of the task (arXiv:2602.08847).

    A = (R - mean) / (std + 1e-6) over all steps of the same agent in the group

Agents whose rewards differ in mean and spread would have gradients of different size under one baseline. An agent that
was called more often votes more often. The only step of a key gets 0; the public code gives it its score:
`singleton="raw"`. Prices on invalid actions are the environment's.
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
