"""LATR: rollouts that differ because they were made to (arXiv:2510.24302).

A tree grows greedily, branches where another token is nearly as likely, and drops the branches that come to the same
(`rollout.LookaheadBranching`); then all are sampled to their ends. The tree makes all of the group at first, and three,
two and one quarter of it from iterations 100, 200 and 300 on, as a line here. Credit is that of GRPO, with the KL
estimate of the paper left out: its weight is 0.01 and needs a reference model.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Schedule
from agentrl_core.loss import Clip, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import LookaheadBranching

LATR = Recipe(
    name="latr",
    source="arXiv:2510.24302",
    rollout=LookaheadBranching(share=Schedule(1.0, 0.25, iterations=300)),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.2), old_logprob="recomputed"),
)
