"""REINFORCE++: one rollout a task, and advantages that are compared over the whole batch (arXiv:2501.03262).

    A_t = R - beta sum_{s >= t} (log p_old,s - log p_ref,s),   then (A - mean) / std over all tokens of the batch

with PPO's clipped loss. The reward is paid at the last token, and each token pays for how far the policy has moved from
the reference; no critic and no groups, so no task is favoured for being hard. beta is 0.001 here, as in verl's
example; the paper gives none.

Equations:
    Read: the authors' code (OpenRLHF) and verl's; the paper's text was not read.

    - C1, token reward: `Discounted(kl_coefficient=0.001)`.
    - C2, return: `Discounted`, gamma 1.
    - C3, normalisation: the last `GroupRelative`, over all trained tokens.
    - C4, baseline variant: the recipe `reinforce_plus_plus_baseline`.
    - C5, loss: `Policy`, clip range 0.2, mean over tokens.
    - C6, masked tokens: left out: in verl a token of a tool sets the return before it to 0; here returns flow past
      it.

Differs:
    - Variance of the normalisation: over n in the authors' code, over n - 1 in verl and here; `ddof=0` is the former.
    - Smallest variance: at least 1e-8 in the authors' code, 1e-8 added in verl and here.
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
