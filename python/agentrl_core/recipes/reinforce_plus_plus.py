"""REINFORCE++: sample one rollout a task, and normalise advantages over the whole batch (arXiv:2501.03262).

    A_t = R - beta sum_{s >= t} (log p_old,s - log p_ref,s),   then (A - mean) / max(std, 1e-4) over all tokens

with PPO's clipped loss in 8 optimizer steps a batch. The last token gets the reward, and each token a penalty for the
policy's distance from the reference. The method needs neither a critic nor groups, so hard tasks are not favoured. beta
is 1e-4, as in the authors' script; std is that of the batch, over n.

Equations:
    Read: the abstract, the authors' code and script (OpenRLHF), RLinf's account of the equations, and verl's code;
    the paper's own text was not read.

    - C1, token reward: `Discounted(kl_coefficient=1e-4)`.
    - C2, return: `Discounted`, gamma 1.
    - C3, normalisation: the last `GroupRelative`, over all trained tokens.
    - C4, baseline variant: the recipe `reinforce_plus_plus_baseline`.
    - C5, loss: `Policy`, clip range 0.2, mean over tokens.
    - C6, masked tokens: left out: in verl a token of a tool sets the return before it to 0; here returns flow past it.

Differs:
    - Score: the authors' script scales the scores of its reward model by running statistics; here the user's scores
      are used as they are.
    - verl: variance over n - 1 with 1e-8 added, beta 0.001, one step a batch; `ddof=1, scale_at_least=0.0,
      variance_eps=1e-8` gives its variance.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import Policy

REINFORCE_PLUS_PLUS = Recipe(
    name="reinforce_plus_plus",
    source="arXiv:2501.03262",
    advantage=(
        Discounted(column="", outcome="score", level="token", kl_coefficient=1e-4),
        GroupRelative(column="advantage", level="token", group_by="batch", ddof=0, eps=0.0, scale_at_least=1e-4),
    ),
    loss=Policy(),
    minibatches=8,
)
