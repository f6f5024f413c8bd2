"""KL-Cov: keep the entropy by a penalty on the few tokens that would reduce it most (arXiv:2505.22617).

    cov_t = (A_t - mean A)(log p_t - mean log p) over the update's tokens
    L = mean over tokens of [ - r A + 1[t among the max(0.002 n, 1) of largest cov] |log p - log p_old| ]

There is no clip. 0.002 is the paper's share for 7B models; 0.0002 is the share for 32B models and in verl. A related
recipe is `clip_cov`.

Equations:
    Read: the paper's sections 4.2 and 4.3, and the authors' code.

    - 10, covariance of a token: `TopTokens("covariance")`, over the tokens of the update.
    - 13, choice: `TopTokens("covariance", 0.002, kind="floor")`, at least one token.
    - 14, loss: `Policy(clip=None)`, with the penalty `KL(1.0, "abs", only=...)`.
    - 4.3, setting: `DynamicSampling` replaces groups with all answers right or all wrong; 8 optimizer steps a batch.
    - C1, aggregation: mean over tokens.

Differs:
    - Means and count: over a micro-batch in the code, over the update here, as in the paper.
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
