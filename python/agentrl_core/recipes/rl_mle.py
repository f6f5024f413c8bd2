"""RL for machine-learning engineering: weight actions by their duration (arXiv:2509.01684).

    L = - mean over tokens of (d / mean d) min(r A, clip(r, 0.8, 1.2) A)

If rollouts run concurrently, quick actions occur more often per hour of machine time; the weight by duration d of a
step undoes that. A failed run gets 0.1 for each milestone that it passed, in addition to the environment's reward for a
failure. Advantages come from a critic.

Equations:
    Read: translated notes on the paper, and the abstract. The paper's text was not read.

    - N1, gradient by duration: `ColumnScaled(column="duration", level="step", mean_one=True)`.
    - N2, reward: `OutcomeScore` and `CombineReward(column="reward.milestones", coefficient=0.1, only="failure")`; the
      environment gives -10 for a failure.
    - N3, prompts: left out: the environment decides which tasks improve an earlier solution.
    - N4, policy loss: `Policy`, whose clipped term is multiplied by the weight.

Differs:
    - Place of the weight: not stated; on the clipped term here.
    - gamma, lambda, clip range: not given; PPO's 1, 0.95 and 0.2 here.
    - Optimizer steps a batch: not given; 1 here, so the clip range has no effect.

Needs: the fact `duration` of steps, in any unit; the reward component `milestones`; the fact success; the critic model.
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
