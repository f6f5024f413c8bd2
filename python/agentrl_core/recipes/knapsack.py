"""Knapsack RL: spend the rollouts of an iteration on the tasks with the largest learning value (arXiv:2509.25849).

With equally many rollouts for each, easy tasks always succeed and hard ones always fail. Here the total stays and the
numbers n_i, from 2 to 128, maximise

    sum_i (1 - p_i^n_i - (1 - p_i)^n_i) p_i (1 - p_i)^2,

the chance of a group with both outcomes times its information, p_i the success rate of the task's last visit, 1/2
before the first. The value is concave in n, so that giving one rollout after the other to the largest gain is exact
(the paper solves a knapsack). Leftover rollouts go to the tasks that were not solved (p = 0), which are worth
nothing by the formula; tasks that are always solved get 2. Then GRPO, with advantages of at most 5 in size.

The paper gives leftovers to the unsolved and does not define a leftover: here gains of at most 1e-4 are left over.

Equations:
    Read: the abstract, digests and notes of others, and a port that is not the authors'; the paper's text was not read.

    - N1, probability of a gradient: in `GreedyAllocator`; not computed: it returns numbers of rollouts and not what
      they are worth.
    - N2, value: `GreedyAllocator("information")`.
    - N3, allocation: `GreedyAllocator(low=2, high=128)` by the rates of `Beta(decay=0.0)`.
    - N4, fallback: the same allocator: what is left goes to tasks of rate 0, at most 128 each.
    - N5, rollouts to a first mixed group: left out: no rule of the paper uses it.
    - N6, training: `GroupRelative(at_most=5.0)`, std of n - 1.

Differs:
    - Rate of a task: of its last visit, as in the notes; the port has all rollouts, and clips it to 1e-6 and 1 - 1e-6.
    - Start: 1/2 for tasks without a visit, which spreads the total evenly; the port begins with five even iterations.
    - Leftovers: spread over unsolved tasks, as in the notes; the port leaves them unspent.
    - Optimizer steps, clip range and KL: not stated; 1, 0.2 and none here.
    - Groups of unequal size: how they weigh in the loss is open; here by their tokens, so that a large group counts
      more than a small one.
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
