"""80/20 forking tokens: train only the most uncertain fifth of the tokens (arXiv:2506.01939).

    L = - (1 / n) sum over t with H_t >= tau of min(r A, clip(r, 0.8, 1.28) A),   n = number of tokens with H_t >= tau

The rest is DAPO: groups with equal rewards are replaced, and answers close to 20480 tokens are penalised. H is the
entropy of the trained policy, and tau is the 0.8-quantile of H over the tokens of the whole update.
`weight.SelectTokens()` approximates this with the entropies of the rollout. TRL divides by the number of all tokens:
`TopTokens("entropy", 0.2, denominator="all")`.

Equations:
    Read: the paper's sections 5.1 and 5.2, and TRL's code.

    - 6, objective: `Policy`, clip ranges 0.2 and 0.28, with the mask `TopTokens("entropy", 0.2, denominator="kept")`.
    - 5.2, setting: `DynamicSampling`, `LengthPenalty`, 16 optimizer steps a batch, no KL, `GroupRelative`.
    - C1, threshold in TRL: the same, as a quantile over the trained tokens of the update.
    - C2, loss in TRL: an option, `denominator="all"`.

Differs:
    - Epsilon of the advantage: 1e-4 in TRL, 1e-6 here.
    - Threshold: computed over a micro-batch in the paper, over the update here.
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
    loss=Policy(clip=Clip(0.2, 0.28), mask=TopTokens("entropy", 0.2, denominator="kept")),
    minibatches=16,
)
