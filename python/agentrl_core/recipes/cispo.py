"""CISPO: importance weights are clipped, and no token is silenced by it (MiniMax-M1, arXiv:2506.13585).

    L = - mean over all tokens of sg(clip(r_t, 0, 1 + high)) A_i log p_t

A clipped ratio stays a weight of the token's gradient, where PPO's clip takes the gradient away. There is no lower
bound. The paper tunes `high` and does not tell it; here it is 0.2, as in verl.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy, Reinforce

CISPO = Recipe(
    name="cispo",
    source="arXiv:2506.13585",
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(1.0, 0.2), surrogate=Reinforce("clamped", "clamped")),
)
