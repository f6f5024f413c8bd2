"""REINFORCE++: one rollout a task, and advantages that are compared over the whole batch (arXiv:2501.03262).

    A_t = R - beta sum_{s >= t} (log p_old,s - log p_ref,s),   then (A - mean) / std over all tokens of the batch

with PPO's clipped loss. The reward is paid at the last token, and each token pays for how far the policy has moved from
the reference; no critic and no groups, so no task is favoured for being hard. beta is 0.001 here, as in verl's
example; the paper gives none.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import Policy

REINFORCE_PLUS_PLUS = Recipe(
    name="reinforce_plus_plus",
    source="arXiv:2501.03262",
    advantage=(
        Discounted(column="", outcome="score", level="token", kl_coefficient=0.001),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=Policy(),
)
