"""WebAgent-R1: only the newest page is in the context (arXiv:2505.16421).

When an observation comes, the one before it becomes a short placeholder; actions keep their tokens. A = (R - mean) /
(std + 1e-4), and the loss averages over tokens, turns and trajectories with a KL penalty of 0.001.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Window

WEB_AGENT_R1 = Recipe(
    name="web_agent_r1",
    source="arXiv:2505.16421",
    rollout=Window(observations=1),
    advantage=GroupRelative(eps=1e-4),
    loss=Policy(aggregate="turn_mean", kl=KL(0.001)),
)
