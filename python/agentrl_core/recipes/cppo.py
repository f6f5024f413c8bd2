"""CPPO: completions that hardly move the policy are left out before they cost a forward pass (arXiv:2503.22342).

    A = (R - mean) / (std + 1e-4) over all of the group; of it the half with the largest |A| is trained
    L = mean_i mean_t - min(r A, clip(r, 0.8, 1.2) A) over what is kept

The share that is pruned goes up to 7/8 in the paper, which fills the freed room with more tasks. verl's port selects
over the batch: `weight.SelectDraws(fraction=0.5, group_by="batch")`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.weight import SelectDraws

CPPO = Recipe(
    name="cppo",
    source="arXiv:2503.22342",
    advantage=GroupRelative(eps=1e-4),
    weight=SelectDraws(fraction=0.5),
    loss=Policy(aggregate="sequence_mean"),
)
