"""REP: REINFORCE on group-relative rewards, held near the policy that sampled by a squared log-ratio.

    L = mean over tokens of [ - A log p_t + 0.1 (log p_t - log p_old,t)^2 ],   A = R - mean R

It is the loss of Kimi k1.5 and of OPMD up to constants, and the sibling of `rec`. AsymRE's view, the likelihood of what
was sampled: `drift=KL(0.1, "k1", direction="forward")`; the shift of its baseline is not built.

Source: arXiv:2509.24203.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy, Reinforce

REP = Recipe(
    name="rep",
    source="arXiv:2509.24203",
    advantage=GroupRelative(scale="none"),
    loss=Policy(clip=None, surrogate=Reinforce(), drift=KL(0.2, "k2")),
)
