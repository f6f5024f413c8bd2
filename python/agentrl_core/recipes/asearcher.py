"""ASearcher: search agents of up to a hundred turns, trained while others still search (arXiv:2508.07976).

    A = (R - mean of the group), then (A - mean) / std over the tokens of the batch
    L = - mean over tokens of w min(u A, clip(u, 0.6, 1.4) A),   u = p / p_proximal,   w = p_proximal / p_behaviour
    tokens with w > 5 have no term and still count; groups of equal rewards are replaced

The loss is AReaL's with a wider range. The score is the task's times the flag of the format, which the environment
pays. How far generation may run ahead is the collection's.

Needs: `proximal_logprob`, from `arl.annotate` before the first update.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.select import DynamicSampling
from agentrl_core.weight import ImportanceWeight

ASEARCHER = Recipe(
    name="asearcher",
    source="arXiv:2508.07976",
    admit=DynamicSampling(),
    advantage=(
        GroupRelative(scale="none"),
        GroupRelative(column="advantage", group_by="batch", voter="token"),
    ),
    weight=ImportanceWeight(logprob="proximal_logprob", kind="filter", at_most=5.0),
    loss=Policy(clip=Clip(0.4, 0.4, center="proximal")),
)
