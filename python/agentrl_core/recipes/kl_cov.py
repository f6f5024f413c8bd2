"""KL-Cov: the entropy is kept by holding the few tokens that would reduce it most (arXiv:2505.22617).

    cov_t = (A_t - mean A)(log p_t - mean log p) over the update's tokens
    L = mean over tokens of [ - r A + 1[t among the max(0.002 n, 1) of largest cov] |log p - log p_old| ]

No clip. 0.002 is for 7B models, 0.0002 for 32B and in verl. Its sibling is `clip_cov`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy, TopTokens

KL_COV = Recipe(
    name="kl_cov",
    source="arXiv:2505.22617",
    advantage=GroupRelative(),
    loss=Policy(clip=None, drift=KL(1.0, "abs", only=TopTokens("covariance", 0.002, kind="floor"))),
)
