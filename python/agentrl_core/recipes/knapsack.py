"""Knapsack RL: spend the rollouts of an iteration on the tasks with the largest learning value (arXiv:2509.25849).

With equal numbers of rollouts, easy tasks always succeed and hard tasks always fail. Here the total is unchanged, and
the numbers of rollouts n_i, from 2 to 128, maximise

    sum_i (1 - p_i^n_i - (1 - p_i)^n_i) p_i (1 - p_i)^2,

the probability of a group with both outcomes, times its information. p_i is the success rate of the task's last
visit, 1/2 before the first visit. The value is concave in n, so it is exact to give one rollout after the other to
the task with the largest gain (the paper solves a knapsack problem). Leftover rollouts go to the tasks that were not
solved (p = 0), whose value is 0 by the formula; tasks that are always solved get 2. Then GRPO follows, with
advantages clipped to a size of 5.

The paper gives leftover rollouts to unsolved tasks and does not define when a rollout is left over: here, if its gain
is at most 1e-4.

Equations:
    Read: the abstract, third-party digests and notes, and a port that is not the authors'; the paper's text was not
    read.

    - N1, probability of a gradient: in `GreedyAllocator`; not computed: it returns numbers of rollouts, not their
      value.
    - N2, value: `GreedyAllocator("information")`.
    - N3, allocation: `GreedyAllocator(low=2, high=128)`, with the rates of `Beta(decay=0.0)`.
    - N4, fallback: the same allocator: leftover rollouts go to tasks with rate 0, at most 128 each.
    - N5, rollouts to a first mixed group: left out: no rule of the paper uses it.
    - N6, training: `GroupRelative(at_most=5.0)`, std with divisor n - 1.

Differs:
    - Rate of a task: of its last visit here, as in the notes; the port uses all rollouts, and clips the rate to
      between 1e-6 and 1 - 1e-6.
    - Start: 1/2 for tasks without a visit, which spreads the total evenly; the port begins with five iterations of
      equal numbers.
    - Leftovers: spread over unsolved tasks, as in the notes; the port does not use them.
    - Optimizer steps, clip range and KL: not stated; 1, 0.2 and none here.
    - Groups of unequal size: their weights in the loss are not stated; here all tokens have the same weight, so a
      large group counts more than a small one.
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
    advantage=GroupRelative(at_most=5.0),
    loss=Policy(),
)
