"""GSPO: use one ratio for a whole answer, the geometric mean of its tokens' ratios (arXiv:2507.18071).

    s_i = exp(mean_t (log p - log p_old)),   L = - mean_i min(s_i A_i, clip(s_i, 1 - 3e-4, 1 + 4e-4) A_i)

The gradient of the ratio is proportional to that of the mean log-prob, so all tokens of an answer have the same
weight. verl bounds the mean log-ratio at 10: `loss.Ratio("sequence", log_at_most=10.0)`.

Equations:
    Read: the paper's sections 3 to 5.1.

    - 5, objective: `Policy`, `aggregate="sequence_mean"`.
    - 6, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.
    - 7, ratio: `Ratio("sequence")`.
    - 10, gradient: computed by `Ratio("sequence")`, equal for all tokens of an answer.
    - 13, GSPO-token: the same value and gradient if the tokens of an answer have one advantage, as here.

Differs:
    - KL: the paper leaves it out of its equations; there is none here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy, Ratio

GSPO = Recipe(
    name="gspo",
    source="arXiv:2507.18071",
    advantage=GroupRelative(),
    loss=Policy(ratio=Ratio("sequence"), clip=Clip(3e-4, 4e-4), aggregate="sequence_mean"),
    minibatches=4,
)
