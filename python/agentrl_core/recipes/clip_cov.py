"""Clip-Cov: the entropy is kept by leaving out a few tokens that would reduce it most (arXiv:2505.22617).

    cov_t = (A_t - mean A)(log p_t - mean log p) over the update's tokens
    L = - mean over tokens of w_t min(r A, clip(r, 0, 2) A),   w_t = 0 for max(0.0002 n, 1) random ones with 1 < cov < 5

Entropy falls through tokens that are likely and have a high advantage. What is left out still counts in the mean. The
public code takes means and n of a micro-batch, here of the whole update. Its sibling is `kl_cov`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, CovarianceMask, Policy

CLIP_COV = Recipe(
    name="clip_cov",
    source="arXiv:2505.22617",
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(1.0, 1.0), mask=CovarianceMask(2e-4, 1.0, 5.0)),
)
