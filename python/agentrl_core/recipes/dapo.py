"""DAPO: clip wider above than below, and resample groups with equal rewards (arXiv:2503.14476).

GRPO with four changes: new groups replace groups whose scores are all equal; the clip range is wider above than
below; all tokens of the batch have the same weight; and answers close to the maximum length are penalised,

    R_length = 0 up to 16384 tokens, then (16384 - length) / 4096, -1 from 20480 on.

There is no penalty on the divergence from a reference. Groups have 16 members in the paper
(`collect(tasks=512, group_size=16)`), and a batch has sixteen optimizer steps: the clip range acts from the second
one on.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, loss: `Policy`, clip ranges 0.2 and 0.28, mean over tokens.
    - C2, dynamic sampling: `DynamicSampling(column="reward")`, which compares outcomes, not scores that include the
      length penalty.
    - C3, overlong reward: `LengthPenalty(free=16384, full_at=20480)`.
    - C4, advantage: `GroupRelative`, of the score with the penalty.
    - C5, no KL: `Policy` without `kl`.
    - C6, reward: from the environment; 1 and -1 in the code.

Differs:
    - Surplus of dynamic sampling: the code generates whole batches of prompts and drops the surplus; here each round
      requests only the missing groups.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward import LengthPenalty, OutcomeScore
from agentrl_core.select import DynamicSampling

DAPO = Recipe(
    name="dapo",
    source="arXiv:2503.14476",
    reward=(OutcomeScore(), LengthPenalty(free=16384, full_at=20480, at_most=1.0)),
    admit=DynamicSampling(column="reward", max_rounds=10),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28)),
    minibatches=16,
)
