"""MiniRL: one importance weight for the engine's mismatch and for staleness, and a clip by staleness alone.

    L = - mean_i sum_t M_t sg(min(p / p_behaviour, 5)) A_i log p_t,   A_i = R_i - mean R
    M_t = 0 if A > 0 and p / p_proximal > 1.27, or A < 0 and p / p_proximal < 0.8

It takes the sum over tokens to be a first-order approximation of the sequence's objective, which holds while the policy
that samples, the one that begins the step (`proximal_logprob`) and the one that is trained are close. So lengths do not
normalise. Routing replay of mixtures of experts is the trainer's: the batch has no routes.

Source: arXiv:2512.01374. Needs: `proximal_logprob`, from `arl.annotate` before the first update.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, InBounds, Policy, Reinforce

MINI_RL = Recipe(
    name="mini_rl",
    source="arXiv:2512.01374",
    advantage=GroupRelative(scale="none"),
    loss=Policy(
        clip=Clip(0.2, 0.27, center="proximal"),
        surrogate=Reinforce("ratio", "ratio", at_most=5.0),
        mask=InBounds(),
        aggregate="constant",
        constant=1.0,
    ),
)
