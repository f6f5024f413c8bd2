"""GSPO: use one ratio for a whole answer, the geometric mean of its tokens' ratios (arXiv:2507.18071).

    s_i = exp(mean_t (log p - log p_old)),   L = - mean_i min(s_i A_i, clip(s_i, 1 - 3e-4, 1 + 4e-4) A_i)

The ratio's gradient is that of the mean log-prob, so an answer's tokens move together. verl bounds the mean log-ratio
at 10: `loss.Ratio("sequence", log_at_most=10.0)`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy, Ratio

GSPO = Recipe(
    name="gspo",
    source="arXiv:2507.18071",
    advantage=GroupRelative(),
    loss=Policy(ratio=Ratio("sequence"), clip=Clip(3e-4, 4e-4), aggregate="sequence_mean"),
)
