"""DeepTravel: plans are verified as a whole and then turn by turn, and failed tasks are tried again.

    R = [the plan is feasible] * product of the verdicts on its turns, 1 or 0,   then GRPO

The environment pays 1 for a plan that passes the first gate and reports, as `reward.turns`, the share of its turns that
agree with the results of the tools: all of them must. It reports 0 for a plan that fails the first gate, whose turns
need no verifier. If the verifier fails, it marks the step `judge_failed`, and the draw has no score. Unsolved tasks
wait in a queue: every 5 iterations a fifth of the groups are taken from it, each task 5 times at most. These numbers
are proposals.

Equations:
    Read: notes on the paper, two of them public, and its reviews; the paper's text was not read.

    - N1, gated reward: `CombineReward(kind="require")`, of a share of 1; `kind="multiply"` makes the soft mean of
      the notes. The environment calls the verifiers.
    - N2, failure buffer: `RetryQueue`; a task that it offers has new rollouts.
    - N3, removal: `RetryQueue(tries=5)`.
    - N4, advantage and loss: `GroupRelative`, std of n - 1 and 1e-6 added to it, and `Policy`, clip range 0.2.

Differs:
    - Optimizer steps, clip range and KL: not in what was read; 1, 0.2 and none here.
    - Start: the paper trains by supervision first; here the policy that is given.

Source: arXiv:2509.21842. Needs: the facts `reward.turns` and `judge_failed`; success of a plan that passes both gates.
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
