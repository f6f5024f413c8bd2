"""KL-Cov: keep the entropy by a penalty on the few tokens that would reduce it most (arXiv:2505.22617).

    cov_t = (A_t - mean A)(log p_t - mean log p) over the update's tokens
    L = mean over tokens of [ - r A + 1[t among the max(0.002 n, 1) of largest cov] |log p - log p_old| ]

No clip. 0.002 is for 7B models, 0.0002 for 32B and in verl. Its sibling is `clip_cov`.

Equations:
    Read: the paper's sections 4.2 and 4.3, the authors' code.

    - 10, covariance of a token: `TopTokens("covariance")`, over the tokens of the update.
    - 13, choice: `TopTokens("covariance", 0.002, kind="floor")`, at least one token.
    - 14, loss: `Policy(clip=None)`, with the penalty `KL(1.0, "abs", only=...)`.
    - 4.3, setting: `DynamicSampling` replaces groups that are all right or all wrong; 8 optimizer steps a batch.
    - C1, aggregation: mean over tokens.

Differs:
    - Means and count: of a micro-batch in the code, of the update here, as in the paper.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy, TopTokens
from agentrl_core.select import DynamicSampling

KL_COV = Recipe(
    name="kl_cov",
    source="arXiv:2505.22617",
    admit=DynamicSampling(),
    advantage=GroupRelative(),
    loss=Policy(clip=None, drift=KL(1.0, "abs", only=TopTokens("covariance", 0.002, kind="floor"))),
    minibatches=8,
)
