"""Knapsack RL: spend the rollouts of an iteration on the tasks with the largest learning value (arXiv:2509.25849).

With equally many rollouts for each, easy tasks always succeed and hard ones always fail. Here the total stays and the
numbers n_i, from 2 to 128, maximise

    sum_i (1 - p_i^n_i - (1 - p_i)^n_i) p_i (1 - p_i)^2,

the chance of a group with both outcomes times its information, p_i the success rate of the task's last visit, 1/2
before the first. The value is concave in n, so that giving one rollout after the other to the largest gain is exact
(the paper solves a knapsack). Leftover rollouts go to the tasks that were not solved (p = 0), which are worth
nothing by the formula; tasks that are always solved get 2. Then GRPO.

The paper gives leftovers to the unsolved and does not define a leftover: here gains of at most 1e-4 are left over.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.select import Beta, ComposedSelector, GreedyAllocator

KNAPSACK = Recipe(
    name="knapsack",
    source="arXiv:2509.25849",
    select=ComposedSelector(
        track=Beta(0.0, 0.0, decay=0.0), count=GreedyAllocator("information", low=2, high=128, gain_above=1e-4)
    ),
    advantage=GroupRelative(),
    loss=Policy(),
)
