"""A*-PO: one rollout a task, regressed on how much it exceeds the task's optimal value (arXiv:2505.20686).

    L = mean_i (0.001 sum_t (log p - log p_ref) - (R_i - V*))^2,   V* = 0.5 log mean exp(R / 0.5) of 8 of p_ref's

V* is made once, before training, from rollouts of the reference, and stored with the task:
`group.log_mean_exp(rewards, tasks, temperature=0.5)`. Neither ratio nor clip nor group. Tasks that all reference
rollouts fail may be left out of the tasks.

Needs: the fact `optimal_value` of trajectories, V* of the task; the model reference.
"""

from agentrl_core.advantage import BaselineRelative
from agentrl_core.loss import Regression
from agentrl_core.recipe import Recipe

A_STAR_PO = Recipe(
    name="a_star_po",
    source="arXiv:2505.20686",
    advantage=BaselineRelative(column="optimal_value"),
    loss=Regression(beta=1e-3, reference="reference"),
)
