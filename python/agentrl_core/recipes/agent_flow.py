"""AgentFlow (Flow-GRPO): every turn of an agent learns from the one outcome of its trajectory (arXiv:2510.05592).

    A_i = (R_i - mean R) / std R over the group, for all tokens of all turns
    L = mean_i mean_turns mean_tokens [ - min(r A, clip(r, 0.8, 1.3) A) + 0.001 k3(p, p_ref) ]

The public code takes mean and std over turns, so that longer trajectories weigh more:
`advantage.GroupRelative(voter="step")`; it drops turns with prompts that are too long after they voted.

Needs: the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Clip, Policy

AGENT_FLOW = Recipe(
    name="agent_flow",
    source="arXiv:2510.05592",
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.3), kl=KL(0.001), aggregate="turn_mean"),
)
