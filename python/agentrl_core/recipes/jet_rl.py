"""Jet-RL: one precision for rollouts and training; where that cannot be, what is left of the mismatch is corrected.

    weight of a token = min(p_trainer_old / p_engine, 2),   then GRPO with ratios to p_trainer_old

Rollouts in FP8 and training in BF16 drift apart in long answers. With one precision both probabilities are equal, and
the weights are 1. The paper gives no fallback; the bound is a proposal. How far both are apart is said by
`weight.importance_diagnostics`: worth a look where the mean |log-ratio| is above 0.02 or the effective sample size
below 0.9 of the draws.

Source: Jet-RL: Enabling On-Policy FP8 Reinforcement Learning (arXiv:2601.14243). Needs: `recomputed_logprob`, by the
trainer before the first update.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.weight import ImportanceWeight

JET_RL = Recipe(
    name="jet_rl",
    source="arXiv:2601.14243",
    advantage=GroupRelative(),
    weight=ImportanceWeight(),
    loss=Policy(),
    old_logprob="recomputed",
)
