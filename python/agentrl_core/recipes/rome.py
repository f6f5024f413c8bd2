"""ROME (IPA, on ROLL): credit, ratios and masks for a whole message of the agent, its chunk (arXiv:2512.24873).

    G_c = r_c + G_{c+1},   A = G_c for all tokens of chunk c,   r_c the reward at its last token
    s_c = exp(mean of log p - log p_old over the chunk)
    L = - mean over tokens of k_c min(s_c A, clip(s_c, 0.8, 1.2) A), at least 1.4 A where A < 0
    k_c = 1[exp(mean of log p_old - log p_engine over the chunk) <= 2], which counts in the mean either way

A chunk is what the agent said between two observations: a step. More filters, at the levels of tokens and sequences,
follow one another, and ROLL's weight is a choice of its own behind them:
`weight.ImportanceWeight(level="step_geometric")`. Its other losses are `Reinforce` with one weight or another (TIS,
TOPR, CISPO). Resampling from a chunk inside a trajectory is not here.

Needs: rewards of steps; `recomputed_logprob`.
"""

from agentrl_core.advantage import Discounted
from agentrl_core.loss import Clip, Policy, Ratio
from agentrl_core.recipe import Recipe
from agentrl_core.weight import ImportanceWeight

ROME = Recipe(
    name="rome",
    source="arXiv:2512.24873",
    advantage=Discounted(),
    weight=ImportanceWeight(level="step_geometric", kind="filter"),
    loss=Policy(ratio=Ratio("step"), clip=Clip(dual=1.4)),
    old_logprob="recomputed",
)
