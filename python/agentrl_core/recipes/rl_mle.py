"""RL for machine-learning engineering: actions that take long weigh as much more (arXiv:2509.01684).

    L = - mean over tokens of (d / mean d) min(r A, clip(r, 0.8, 1.2) A),   0.1 <= d / mean d <= 10

Where rollouts run side by side, quick actions are seen more often for each hour of the machine; the weight by duration
d of a step undoes that. A run that fails is paid for the milestones it passed, where the environment says them:
`reward.CombineReward(column="reward.milestones", coefficient=0.1, only="failure", at_most=0.5)`. The bounds are ours.

Needs: the fact `duration` of steps, in any unit.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.weight import ColumnScaled

RL_MLE = Recipe(
    name="rl_mle",
    source="arXiv:2509.01684",
    advantage=GroupRelative(),
    weight=ColumnScaled(column="duration", level="step", mean_one=True, at_least=0.1, at_most=10.0),
    loss=Policy(),
)
