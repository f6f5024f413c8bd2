"""ScalingInter-RL: few turns at first, more of them stage by stage (arXiv:2509.08755).

In iteration n a trajectory has at most h[min(floor(n / 100), S - 1)] turns, here 10, 20 and 30, as in SciWorld and
TextCraft; what is truncated keeps what it was paid. Then GRPO with a KL penalty of 0.001 (k3).
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Horizon

SCALING_INTER = Recipe(
    name="scaling_inter",
    source="arXiv:2509.08755",
    rollout=Horizon(stages="10,20,30", every=100),
    advantage=GroupRelative(),
    loss=Policy(kl=KL(0.001)),
)
