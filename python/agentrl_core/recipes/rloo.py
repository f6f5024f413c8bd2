"""RLOO: REINFORCE with a leave-one-out baseline (arXiv:2402.14740).

    A_i = R_i - mean(R_j, j != i),   L = - mean_i sum_t r_t A_i

with the ratio r in place of log p: same gradient at the behaviour policy, and no clip. The sum over tokens is not
divided by the length, as in the paper. The paper's reward includes -beta KL to a reference; add `loss.KL` for a penalty
in the loss instead.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.rollout import Independent

RLOO = Recipe(
    name="rloo",
    source="arXiv:2402.14740",
    rollout=Independent(),
    advantage=GroupRelative(center="leave_one_out", scale="none"),
    loss=Policy(clip=None, aggregate="constant", constant=1.0),
)
