"""DeepTravel: plans are verified as a whole and then turn by turn, and failed tasks are tried again.

    R = [the plan is feasible] * share of its turns that agree with the results of the tools,   then GRPO

The environment pays 1 for a plan that passes the first gate and reports the verdict on its turns as `reward.turns`,
which it need not ask for where the first gate is shut. A verifier that failed marks the step `judge_failed`: the draw
has no score. Tasks that nobody solved wait in a queue: every 5 iterations, a fifth of the groups are taken from it,
each task 5 times at most. How often, how many and the soft mean over turns are proposals; the paper has verdicts of 0
and 1.

Source: arXiv:2509.21842. Needs: the facts `reward.turns` and `judge_failed`.
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
    reward=(OutcomeScore(), CombineReward(column="reward.turns", kind="multiply"), Unscored(flags="judge_failed")),
    advantage=GroupRelative(),
    loss=Policy(),
)
