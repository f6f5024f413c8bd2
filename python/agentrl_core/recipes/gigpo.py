"""GiGPO: group-in-group policy optimisation (arXiv:2505.10978).

Each step has the advantage of its trajectory over the group plus that of the step over the steps which the group took
from the same state:

    A = A_episode + A_step,   discount 0.95, means subtracted, no division by a standard deviation.

The group's statistics count every step (public code), so that long trajectories weigh more;
`GroupInGroup(episode_unit="trajectory")` counts every trajectory once. The public scripts add 0.01 k3 to a reference
(`loss=loss.Policy(kl=loss.KL(0.01))`) and a penalty of 0.1 for invalid actions, which belongs to the environment.
"""

from agentrl_core.advantage import GroupInGroup
from agentrl_core.loss import Clip, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Independent

GIGPO = Recipe(
    name="gigpo",
    source="arXiv:2505.10978",
    rollout=Independent(),
    advantage=GroupInGroup(gamma=0.95, step_weight=1.0),
    loss=Policy(clip=Clip(0.2, 0.2), aggregate="token_mean"),
)
