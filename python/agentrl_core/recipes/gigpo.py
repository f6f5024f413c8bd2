"""GiGPO: compare rollouts within a group, and steps that start from the same state (arXiv:2505.10978).

Each step has the advantage of its trajectory over the group plus that of the step over the steps which the group took
from the same state:

    A = A_episode + A_step,   discount 0.95, means subtracted, no division by a standard deviation.

The chain reads so: what a step led to, compared with the steps of its group that acted on the same state; plus the
score, compared with the group. On plain columns this is `advantage.gigpo`. States that are similar rather than equal:
make a column of `agentrl_core.keys.similar`, and group by it.

The group's statistics count every step (public code), so that long trajectories weigh more; `voter="trajectory"` in the
last link counts every trajectory once. A group of one counts as mean 0. The public scripts add 0.01 k3 to a reference
(`loss=loss.Policy(kl=loss.KL(0.01))`) and a penalty of 0.1 for invalid actions, which belongs to the environment.

Equations:
    Read: the public code, as another repository carries it, and the abstract.

    - C1, episode advantage: the last `GroupRelative`, over all steps of the group, mean only.
    - C2, step return: `Discounted(gamma=0.95)`.
    - C3, anchor groups: `group_by="group_id,state_key"`.
    - C4, step advantage: the first `GroupRelative`, mean only.
    - C5, advantage: the sum of both, omega 1: `add=True`.

Differs:
    - KL: 0.01 in scripts, by notes of others; none here.
    - Optimizer steps a batch: not seen in the code, 1 here.
    - Group size: 8 in scripts; here it is that of `collect`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import Independent

GIGPO = Recipe(
    name="gigpo",
    source="arXiv:2505.10978",
    rollout=Independent(),
    advantage=(
        Discounted(gamma=0.95),
        GroupRelative(column="advantage", level="step", group_by="group_id,state_key", scale="none"),
        GroupRelative(level="step", scale="none", singleton="raw", add=True),
    ),
    loss=Policy(clip=Clip(0.2, 0.2), aggregate="token_mean"),
)
