"""GRPO-TCR: train agents that reason with tools, with a mean over tokens, clip-higher and a length penalty.

    L = - mean over tokens of min(r A, clip(r, 0.8, 1.28) A), at least 10 A if A < 0
    R = s - min((length - 16384) / 4096, 1) beyond 16384 tokens,   A = (R - mean) / std
    s = 1 for a right answer, -1 for a wrong one, + 0.1 for each tool call, at most 0.4

The length includes the output of tools; `LengthPenalty(..., count="trained")` counts the policy's own tokens only.
There is no KL penalty. `select.DynamicSampling` leaves out tasks that the policy always or never solves; it is off
here, as in the paper's script.

Equations:
    Read: the paper's sections 2 and 4.1, the public code and its README.

    - 2, objective: `Policy`; its KL is an option, `Policy(kl=...)`, with coefficient 0 in the code and no number in the
      paper.
    - 3, advantage: `GroupRelative`; its std divides by n - 1.
    - 4, token-level loss: `Policy`, one mean over tokens.
    - 8, reward with tools: `OutcomeScore` and `CombineReward`.
    - 9, overlong penalty: `LengthPenalty`.
    - C1, score in the code: an option, `CombineReward(..., only="failure")`: a right answer gets no bonus.
    - C2, overlong penalty: `LengthPenalty`.
    - C3, advantage: `GroupRelative`; a group of one has advantage 0 here, and its reward in the code
      (`singleton="raw"`).
    - C4, loss: `Policy`, with clip ranges 0.2 and 0.28 and dual clip 10.

Differs:
    - Bound of the bonus: the paper clips the bonus but prints no bound; here 0.4, the code's bound for wrong answers.
    - Tool calls: the script's reward manager does not pass the number of turns, so every wrong answer scores -1.1; here
      the reward function gets this number.

Source: arXiv:2510.11701. Needs: the facts `success` and `tool_calls` of an episode.
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
