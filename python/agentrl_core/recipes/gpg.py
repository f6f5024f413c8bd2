"""GPG: the plain policy gradient with a group's mean as baseline (arXiv:2504.02546).

    A_i = alpha (R_i - mean(R)),   L = - mean over all tokens of A_i log p_t

alpha = B / (B - M) makes up for the M of B draws whose group has equal scores and which therefore have no gradient. No
ratio, no clip, no reference. verl counts draws whose score is 0 in place of M: `weight.SignalRescale(kind="rows")`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.weight import SignalRescale

GPG = Recipe(
    name="gpg",
    source="arXiv:2504.02546",
    advantage=GroupRelative(scale="none"),
    weight=SignalRescale(kind="rows", column="advantage"),
    loss=Policy(clip=None, surrogate=Reinforce()),
)
