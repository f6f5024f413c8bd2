"""CISPO: importance weights are clipped, and no token is silenced by it (MiniMax-M1, arXiv:2506.13585).

    L = - mean over all tokens of sg(clip(r_t, 0, 1 + high)) A_i log p_t

A clipped ratio stays a weight of the token's gradient, where PPO's clip takes the gradient away. There is no lower
bound. The paper tunes `high` and does not state it; here it is 0.2, as in verl.

Equations:
    Read: verl's code, the abstract, and notes on the paper; the paper's text was not read.

    - C1, objective: `Policy`, `Reinforce("clamped", "clamped")`.
    - C2, gradient of a token: the clamped ratio times the advantage, outside of the range too.
    - C3, aggregation: mean over tokens.
    - N1, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.

Differs:
    - Clip range below: 10 in verl's example, which no ratio reaches; 1 here, which is none either.
    - KL: 0.001 in verl's example, none in the notes on the paper and here.
    - Optimizer steps a batch: 2 in verl's example, the paper's number was not read; 1 here. The bound acts from the
      second one on: `CISPO.replace(minibatches=2)`.
    - Group size: 5 in verl's example; here it is that of `collect`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy, Reinforce

CISPO = Recipe(
    name="cispo",
    source="arXiv:2506.13585",
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(1.0, 0.2), surrogate=Reinforce("clamped", "clamped")),
)
