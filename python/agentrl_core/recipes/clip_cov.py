"""Clip-Cov: keep entropy high by leaving out a few tokens that would reduce it most (arXiv:2505.22617).

    cov_t = (A_t - mean A)(log p_t - mean log p) over the update's tokens
    L = - mean over tokens of w_t min(r A, clip(r, 0, 2) A),   w_t = 0 for max(0.0002 n, 1) random ones with 1 < cov < 5

Updates of likely tokens with a high advantage reduce the entropy. Tokens that are left out still count in the mean.
The public code takes means and n over a micro-batch, this recipe over the whole update. A related recipe is `kl_cov`.

Equations:
    Read: the paper's sections 4.2 and 4.3 and the public code.

    - 10, covariance of a token: `CovarianceMask`, over the tokens of the update.
    - 11, choice: `CovarianceMask(2e-4, 1.0, 5.0)`, at least one token, as in the code.
    - 12, loss: `Policy`, 0 for the chosen tokens.
    - 13, choice of KL-Cov: the recipe `kl_cov`.
    - 14, loss of KL-Cov: the recipe `kl_cov`, with the absolute log-ratio.
    - 4.3, setting: `DynamicSampling` replaces groups that are all right or all wrong; 8 optimizer steps a batch.
    - C1, in the code: `Clip(1.0, 1.0)`; tokens that this clip cuts are not candidates; all tokens count in the mean.

Differs:
    - Means: over a micro-batch in the code, over the update here.
    - Value of the loss: the paper's listing detaches a chosen token, which keeps its value; it is 0 in equation 12,
      the code and this recipe. The gradient is the same.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, CovarianceMask, Policy
from agentrl_core.select import DynamicSampling

CLIP_COV = Recipe(
    name="clip_cov",
    source="arXiv:2505.22617",
    admit=DynamicSampling(),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(1.0, 1.0), mask=CovarianceMask(2e-4, 1.0, 5.0)),
    minibatches=8,
)
