"""APRIL: start twice as many groups as needed, and continue the unfinished ones later (arXiv:2509.18521).

    N' = 2 N groups are in flight; as soon as N have ended, the batch is theirs, and generation stops
    groups that have not ended go on in the next iteration, before new ones, under its weights
    L = - mean of min(r A, clip(r, 0.8, 1.28) A),   r = p / p_start,   A = (R - mean) / std of the group

p_start is the policy at the start of the update, recomputed for all tokens, whichever weights sampled them. Collect
with `Collector(..., batch_policy=BatchPolicy(oversample=2.0))`; N = 32, groups of 8, temperature 0.8. How often a group
may go on is not bounded; `BatchPolicy(oversample=2.0, max_carryovers=4)` bounds it.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy

APRIL = Recipe(
    name="april",
    source="arXiv:2509.18521",
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(high=0.28)),
    old_logprob="recomputed",
)
