"""FAPO: a right answer by flawed reasoning is worth less than one by sound reasoning (arXiv:2510.22543).

    R = 1 or -1, less 1 if right and flawed, less DAPO's price on the last 4096 of 8192 tokens;   A = (R - mean) / std

Early, when few answers are right, a flawed one is above its group's mean and is learned; later it is below. Whether an
answer is flawed is the fact `flawed` of the environment, whose judge reads the right ones only: 1 if it finds an
error, and 0 if it cannot be reached. The judge's own training is another environment's.

Needs: the fact `flawed` of trajectories, and which succeeded.

Equations:
    Read: the paper's sections 3.1, 3.2 and 4.1 and the public code.

    - 7, reward of the judge: left out: the judge is trained before, in an environment of its own.
    - 8, reward of the policy: `OutcomeScore(success=1.0, failure=-1.0)` and `CombineReward(column="flawed")`.
    - 8b, advantage: `GroupRelative`.
    - P1, shift: left out: a consequence of 8 and 8b, nothing to compute.
    - C1, in the code: the fact `flawed` is 0 if the judge cannot be reached, so that the outcome stays.
    - C2, loss: `Policy`, clip ranges 0.2 and 0.28, dual clip 10, mean over tokens; `LengthPenalty` over the last
      4096.

Differs:
    - Longest answer: 8192 tokens here, of which the last 4096 are charged.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward import CombineReward, LengthPenalty, OutcomeScore

FAPO = Recipe(
    name="fapo",
    source="arXiv:2510.22543",
    reward=(
        OutcomeScore(success=1.0, failure=-1.0),
        CombineReward(column="flawed", coefficient=-1.0, only="success"),
        LengthPenalty(free=4096, full_at=8192, at_most=1.0),
    ),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28, dual=10.0)),
    minibatches=16,
)
