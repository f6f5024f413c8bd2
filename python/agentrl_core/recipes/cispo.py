"""CISPO: clip the importance weights and keep the gradient of every token (MiniMax-M1, arXiv:2506.13585).

    L = - mean over all tokens of sg(clip(r_t, 0, 1 + high)) A_i log p_t

A clipped ratio still weights the token's gradient, whereas PPO's clip removes the gradient. There is no lower bound.
The paper tunes `high` and does not state it; here it is 0.2, as in verl. A batch has sixteen optimizer steps, and the
bound acts from the second one on. As in DAPO, groups whose outcomes are all equal are replaced by new ones, and answers
close to the maximum length get a penalty. For the lengths, 16384 and 20480 tokens, the paper refers to DAPO.

Equations:
    Read: the paper's section 3.1, and verl's code.

    - 2, advantage: `GroupRelative`, std with denominator n - 1, and 1e-6 added to it.
    - 4, objective: `Policy`, `Reinforce("clamped", "clamped")`, mean over tokens.
    - 5, clipped weight: `Clip(1.0, 0.2)`.
    - C1, gradient of a token: the clamped ratio times the advantage, also outside of the clip range.
    - C2, dynamic sampling and length penalty: `DynamicSampling(column="reward")` and `LengthPenalty`, as in DAPO.

Differs:
    - Clip range: above, 0.2 as in verl's example; below, 1 here, which no ratio reaches, and 10 in verl's example.
    - KL: 0.001 in verl's example, none in the paper and here.
    - Token mean: over the optimizer step here, as in DAPO's code; equation 4 averages over one group.
    - Group size: 5 in verl's example; here it is the group size of `collect`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy, Reinforce
from agentrl_core.reward import LengthPenalty, OutcomeScore
from agentrl_core.select import DynamicSampling

CISPO = Recipe(
    name="cispo",
    source="arXiv:2506.13585",
    reward=(OutcomeScore(), LengthPenalty(free=16384, full_at=20480, at_most=1.0)),
    admit=DynamicSampling(column="reward", max_rounds=10),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(1.0, 0.2), surrogate=Reinforce("clamped", "clamped")),
    minibatches=16,
)
