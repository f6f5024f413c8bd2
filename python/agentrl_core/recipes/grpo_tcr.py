"""GRPO-TCR: token mean, clip-higher and a price on length, a recipe for agents that reason with tools.

    L = - mean over tokens of min(r A, clip(r, 0.8, 1.28) A), at least 10 A if A < 0
    R = s - min((length - 16384) / 4096, 1) beyond 16384 tokens,   A = (R - mean) / std
    s = 1 of a right answer, -1 of a wrong one, + 0.1 for each tool call, at most 0.4

Lengths include the output of tools; the policy's own tokens only: `LengthPenalty(..., count="trained")`. No KL. Tasks
that the policy always or never solves are left out: `select.DynamicSampling`, which the paper's script has off.

Equations:
    Read: the paper's sections 2 and 4.1, the public code and its README.

    - 2, objective: `Policy`; its KL is an option, `Policy(kl=...)`: 0 in the code, no number in the paper.
    - 3, advantage: `GroupRelative`, std of n - 1.
    - 4, token-level loss: `Policy`, one mean over tokens.
    - 8, reward with tools: `OutcomeScore` and `CombineReward`.
    - 9, overlong penalty: `LengthPenalty`.
    - C1, score in the code: an option, `CombineReward(..., only="failure")`: a right answer has no bonus.
    - C2, overlong penalty: `LengthPenalty`.
    - C3, advantage: `GroupRelative`; a group of one is 0 here, and its reward in the code (`singleton="raw"`).
    - C4, loss: `Policy`, clip ranges 0.2 and 0.28, dual clip 10.

Differs:
    - Bound of the bonus: the paper clips it and prints no bound; 0.4 is that of wrong answers in the code.
    - Tool calls: the script's reward manager passes no number of turns, so that every wrong answer scores -1.1; here
      the reward function gets it.

Source: arXiv:2510.11701. Needs: facts `success` and `tool_calls` of an episode.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward import CombineReward, LengthPenalty, OutcomeScore

GRPO_TCR = Recipe(
    name="grpo_tcr",
    source="arXiv:2510.11701",
    reward=(
        OutcomeScore(success=1.0, failure=-1.0),
        CombineReward(column="tool_calls", coefficient=0.1, at_most=0.4),
        LengthPenalty(free=16384, full_at=20480, at_most=1.0),
    ),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28, dual=10.0)),
    minibatches=4,
)
