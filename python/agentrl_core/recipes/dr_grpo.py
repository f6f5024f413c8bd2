"""Dr. GRPO: GRPO without the divisions that favour long wrong answers and easy or hard tasks (arXiv:2503.20783).

    A_i = R_i - mean(R),   L = - 1/G sum_i sum_t min(r_t A_i, clip(r_t, 0.8, 1.2) A_i)

Neither the standard deviation nor the length of an answer divides: the sum over tokens is as it is. Public code divides
it by the longest answer that is allowed, a constant that scales the learning rate:
`DR_GRPO.replace(loss=loss.Policy(aggregate="constant", constant=3000.0))`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

DR_GRPO = Recipe(
    name="dr_grpo",
    source="arXiv:2503.20783",
    advantage=GroupRelative(scale="none"),
    loss=Policy(aggregate="constant", constant=1.0),
)
