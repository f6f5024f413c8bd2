"""REINFORCE++-baseline: scores less their group's mean, compared over the whole batch (arXiv:2501.03262).

    A_i = R_i - mean(R of the group),   then (A - mean) / std over all tokens of the batch

with PPO's clipped loss, and beta k2 to a reference in the loss, beta = 0.001 here. It is the form of REINFORCE++ for
several rollouts a task: the group's mean measures how hard the task is, the batch sets the size of a step.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy

REINFORCE_PLUS_PLUS_BASELINE = Recipe(
    name="reinforce_plus_plus_baseline",
    source="arXiv:2501.03262",
    advantage=(
        GroupRelative(scale="none"),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=Policy(kl=KL(0.001, "k2")),
)
