"""GiGPO: compare rollouts within a group, and steps that start from the same state (arXiv:2505.10978).

The advantage of a step is the sum of two: its trajectory compared with the group, and the step compared with the steps
that the group took from the same state:

    A = A_episode + A_step,   discount 0.95, means subtracted, no division by a standard deviation.

Every trajectory of the group votes once in the mean, long or short, and the loss has 0.01 of the KL to a reference.

The first two links of the chain compare the discounted return of a step with the group's steps from the same state. The
last link adds the score, compared with the group. On plain columns this is `advantage.gigpo(voter="trajectory")`,
except that a group of one has 0 here. To group by similar instead of equal states, make a column with
`agentrl_core.keys.similar` and group by it.

In the public code every step votes in the group's mean, so that long trajectories weigh more, and a group of one has
the mean 0: `GroupRelative(level="step", scale="none", singleton="raw", add=True)` as the last link. A penalty of 0.1
for invalid actions belongs to the environment.

Equations:
    Read: the public code, as another repository copies it, the abstract, and notes on the paper.

    - N1, episode advantage: the last `GroupRelative`, over the trajectories of the group, mean only.
    - C1, episode advantage of the code: an option, over all steps of the group.
    - C2, step return: `Discounted(gamma=0.95)`.
    - C3, anchor groups: `group_by="group_id,state_key"`.
    - C4, step advantage: the first `GroupRelative`, mean only.
    - C5, advantage: the sum of both, omega 1: `add=True`.
    - N2, objective: `Policy(clip=Clip(0.2, 0.2), kl=KL(0.01))`.

Differs:
    - Optimizer steps a batch: the source has mini-batches of 256 steps, so their number depends on the length of the
      episodes; 1 here. `GIGPO.replace(minibatches=8)` makes 8.
    - Group size: 8 in the paper; here it is set in `collect`.

Needs: the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.rollout import Independent

GIGPO = Recipe(
    name="gigpo",
    source="arXiv:2505.10978",
    rollout=Independent(),
    advantage=(
        Discounted(gamma=0.95),
        GroupRelative(column="advantage", level="step", group_by="group_id,state_key", scale="none"),
        GroupRelative(level="step", voter="trajectory", scale="none", add=True),
    ),
    loss=Policy(clip=Clip(0.2, 0.2), kl=KL(0.01), aggregate="token_mean"),
)
