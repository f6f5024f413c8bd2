"""FAPO: reward a right answer less if its reasoning is flawed (arXiv:2510.22543).

    R = 1 or -1, minus 1 if right and flawed, minus DAPO's penalty on the last 4096 of 8192 tokens
    A = (R - mean) / std

Early, when few answers are right, a flawed right answer is above its group's mean and is reinforced; later it is below
the mean. The environment reports flawed answers in the fact `flawed`. Its judge reads only the right answers: the fact
is 1 if the judge finds an error, and 0 if the judge cannot be reached. The judge is trained in another environment.

Needs: the fact `flawed` of trajectories, and whether they succeeded.

Equations:
    Read: the paper's sections 3.1, 3.2 and 4.1 and the public code.

    - 7, reward of the judge: left out: the judge is trained before, in its own environment.
    - 8, reward of the policy: `OutcomeScore(success=1.0, failure=-1.0)` and `CombineReward(column="flawed")`.
    - 8b, advantage: `GroupRelative`.
    - P1, shift: left out: it follows from 8 and 8b; there is nothing to compute.
    - C1, in the code: the fact `flawed` is 0 if the judge cannot be reached, so the outcome reward is unchanged.
    - C2, loss: `Policy`, with clip ranges 0.2 and 0.28, dual clip 10 and a mean over tokens; `LengthPenalty` over the
      last 4096 tokens.

Differs:
    - Longest answer: 8192 tokens here; the last 4096 are penalised.
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
