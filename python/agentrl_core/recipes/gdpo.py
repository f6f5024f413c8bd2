"""GDPO: several rewards are compared each by itself, so that different mixtures stay different (arXiv:2601.05242).

    A_i = sum over rewards k of (R_ik - mean_k) / (std_k + 1e-6) of the group
    A = (A - mean) / (std + 1e-4) over the draws of the batch

Two rewards stand here, each with weight 1 (`coefficient`). The library verl whitens over tokens, so that long answers
weigh more: `voter="token", eps=0.0, variance_eps=1e-8`. A reward that only counts where a harder one passes:
`reward.CombineReward(column="reward.correct", kind="require")`.

Needs: the reward's components `correct` and `format`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

GDPO = Recipe(
    name="gdpo",
    source="arXiv:2601.05242",
    advantage=(
        GroupRelative(column="reward.correct", add=True),
        GroupRelative(column="reward.format", add=True),
        GroupRelative(column="advantage", group_by="batch", eps=1e-4),
    ),
    loss=Policy(),
)
