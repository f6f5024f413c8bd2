"""V0: a value model that reads the policy's own results sets the number of rollouts of each task (arXiv:2602.03584).

A frozen model predicts the success rate p of the policy on a question it was never asked, from results on other
questions. That prediction annotates the pool (column `prior`), before each iteration by the user's own call, and the
rollouts of an iteration are shared out so that

    sum_q (1 - p_q^n_q - (1 - p_q)^n_q)

is largest, the expected number of groups with both outcomes, with at least 2 and at most 32 of each. Then GRPO.

The paper does not give the objective of its budget; this is a proposal, and so are the bounds.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.select import ComposedSelector, GreedyAllocator, PoolColumn

V0 = Recipe(
    name="v0",
    source="arXiv:2602.03584",
    select=ComposedSelector(track=PoolColumn("prior"), count=GreedyAllocator("one", low=2, high=32)),
    advantage=GroupRelative(),
    loss=Policy(),
)
