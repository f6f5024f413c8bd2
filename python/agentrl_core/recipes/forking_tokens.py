"""80/20 forking tokens: train only the most uncertain fifth of the tokens (arXiv:2506.01939).

    L = - (1 / tokens) sum over t with H_t >= the 0.8-quantile of H of min(r A, clip(r, 0.8, 1.28) A)

on top of DAPO: groups without a spread are replaced, and answers near 20480 tokens charged. H is the entropy of the
policy that is trained, over the tokens of the whole update; the other tokens still count in the denominator. By the
entropies of the rollout, an approximation: `weight.SelectTokens()`.

Equations:
    Read: TRL's code and notes; neither the paper's text nor the authors' code was read.

    - C1, threshold: `TopTokens("entropy", 0.2)`, of the trained tokens of the update.
    - C2, mask: `TopTokens`, under the current policy.
    - N1, loss: `Policy`, clip ranges 0.2 and 0.28; all tokens count in the mean.
    - N2, setting: `DynamicSampling`, `LengthPenalty`, no KL, `GroupRelative`.

Differs:
    - Epsilon of the advantage: 1e-4 in TRL, 1e-6 here.
    - Filter of overlong answers: left out: the settings of DAPO name it by notes alone.
    - Optimizer steps a batch: not stated, 1 here; `FORKING_TOKENS.replace(minibatches=16)` makes as many as DAPO.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy, TopTokens
from agentrl_core.reward import LengthPenalty, OutcomeScore
from agentrl_core.select import DynamicSampling

FORKING_TOKENS = Recipe(
    name="forking_tokens",
    source="arXiv:2506.01939",
    reward=(OutcomeScore(), LengthPenalty(free=16384, full_at=20480, at_most=1.0)),
    admit=DynamicSampling(column="reward"),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28), mask=TopTokens("entropy", 0.2)),
)
