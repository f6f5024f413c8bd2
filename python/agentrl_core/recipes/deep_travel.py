"""DeepTravel: verify a plan as a whole, then turn by turn, and retry failed tasks.

    R = [the plan is feasible] * product of the verdicts on its turns, 1 or 0,   then GRPO

The environment rewards a plan that passes the first gate with 1. As `reward.turns` it reports the share of the plan's
turns that agree with the tool results; all turns must agree. For a plan that fails the first gate it reports 0, and
the turns need no verifier. If the verifier fails, the environment marks the step `judge_failed`, and the draw has no
score. Unsolved tasks wait in a queue: every 5 iterations a fifth of the groups come from it, each task at most 5
times. These numbers are proposals.

Equations:
    Read: notes on the paper, two of them public, and its reviews; the paper's text was not read.

    - N1, gated reward: `CombineReward(kind="require")`, which requires a share of 1; `kind="multiply"` gives the soft
      mean of the notes. The environment calls the verifiers.
    - N2, failure buffer: `RetryQueue`; a task from the queue gets new rollouts.
    - N3, removal: `RetryQueue(tries=5)`.
    - N4, advantage and loss: `GroupRelative`, std with divisor n - 1, plus 1e-6, and `Policy`, clip range 0.2.

Differs:
    - Optimizer steps, clip range and KL: not in the sources that were read; 1, 0.2 and none here.
    - Start: the paper begins with supervised training; this recipe begins with the given policy.

Source: arXiv:2509.21842. Needs: the facts `reward.turns` and `judge_failed`; success of a plan that passes both
gates.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.reward import CombineReward, OutcomeScore, Unscored
from agentrl_core.select import ComposedSelector, RetryQueue

DEEP_TRAVEL = Recipe(
    name="deep_travel",
    source="arXiv:2509.21842",
    select=ComposedSelector(queue=RetryQueue(every=5, share=0.2, tries=5)),
    reward=(OutcomeScore(), CombineReward(column="reward.turns", kind="require"), Unscored(flags="judge_failed")),
    advantage=GroupRelative(),
    loss=Policy(),
)
