"""A*-PO: regress on the optimal advantage, with one rollout for each task (arXiv:2505.20686).

Before training the reference policy answers each task 8 times; that is a survey in iteration 0. From these rewards

    V*(x) = beta_1 ln mean_i exp(r_i / beta_1),    beta_1 = 0.5,

and then L = (beta_2 sum_t ln(pi / pi_ref) - (r - V*))^2 with beta_2 = 1e-3, one rollout for each task. Tasks that the
reference never solved leave the pool (an option of the paper). Draws read V* as `task_value_star`.

The rollouts that train in iteration 0 were chosen before V* is known (its value is 0 then): call
`collect(tasks=1, group_size=1)` there, or begin with the reference as the policy. Use `group_size=1` after that.
"""

from agentrl_core.advantage import BaselineRelative
from agentrl_core.loss import Regression
from agentrl_core.recipe import Recipe
from agentrl_core.select import ComposedSelector, LogMeanExp, PoolFilter, Survey

A_STAR_PO = Recipe(
    name="a_star_po",
    source="arXiv:2505.20686",
    select=ComposedSelector(pool=PoolFilter(above=0.0, attempts=8), track=LogMeanExp(0.5), survey=Survey(rollouts=8)),
    advantage=BaselineRelative(kind="column", column="task_value_star"),
    loss=Regression(beta=1e-3, reference="reference"),
)
