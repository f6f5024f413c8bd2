"""RL for machine-learning engineering: actions that take long weigh as much more (arXiv:2509.01684).

    L = - mean over tokens of (d / mean d) min(r A, clip(r, 0.8, 1.2) A)

If rollouts run side by side, quick actions are seen more often for each hour of the machine; the weight by duration d
of a step undoes that. A run that fails is paid 0.1 for each milestone it passed, on top of what the environment pays
for a failure. Advantages come from a critic.

Equations:
    Read: translated notes on the paper, and the abstract. The paper's text was not read.

    - N1, gradient by duration: `ColumnScaled(column="duration", level="step", mean_one=True)`.
    - N2, reward: `OutcomeScore` and `CombineReward(column="reward.milestones", coefficient=0.1, only="failure")`; the
      environment pays -10 for a failure.
    - N3, prompts: left out: the environment decides which tasks improve an earlier solution.
    - N4, policy loss: `Policy`, whose clipped term has the weight.

Differs:
    - Place of the weight: not stated; on the clipped term here.
    - gamma, lambda, clip range: not given; 1, 0.95 and 0.2 of PPO here.
    - Optimizer steps a batch: not given; 1 here, so that the clip range does not act.

Needs: the fact `duration` of steps, in any unit; the reward's component `milestones`; the fact success; the model
critic.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.weight import ColumnScaled

RL_MLE = Recipe(
    name="rl_mle",
    source="arXiv:2509.01684",
    reward=(OutcomeScore(), CombineReward(column="reward.milestones", coefficient=0.1, only="failure")),
    advantage=Gae(lam=0.95),
    weight=ColumnScaled(column="duration", level="step", mean_one=True),
    loss=(Train(Value("token_mean", clip=0.2), model="critic"), Policy()),
)
