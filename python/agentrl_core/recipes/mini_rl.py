"""MiniRL: correct engine mismatch and staleness by one importance weight, and clip by staleness alone.

    L = - mean_i sum_t M_t sg(min(p / p_behaviour, 5)) A_i log p_t,   A_i = R_i - mean R
    M_t = 0 if A > 0 and p / p_proximal > 1.27, or A < 0 and p / p_proximal < 0.8

The sum over tokens is a first-order approximation of the sequence-level objective. It holds while three policies are
close: the one that samples, the one at the beginning of the step (`proximal_logprob`), and the one that is trained. So
the loss is not normalised by length. Routing replay for mixtures of experts belongs to the model:
`update.pack(replay_routes=True)` adds it.

Equations:
    Read: notes of others, one of which copies the paper's equations 3 to 11; the paper's text was not read.

    - N1, decomposition: the weight is p / p_behaviour; the clip reads p / p_proximal alone.
    - N2, first order: not computed: it is the argument for a sum over tokens, and not a step of the algorithm.
    - N3, gradient: `Reinforce("ratio", "ratio", at_most=5.0)`, `aggregate="constant"`: a sum over tokens.
    - N4, mask: `InBounds` with the bounds of `Clip(0.2, 0.27, center="proximal")`.
    - N5, advantage: `GroupRelative(scale="none")`.
    - N6, routing replay: left out: an option of the packs, `update.pack(replay_routes=True)`.

Differs:
    - Standard deviation: one summary divides by it; the notes and this recipe do not.
    - Optimizer steps: 1, 2, 4 or 8 a batch in the paper; 1 here, because the paper's runs with more steps need routing
      replay to be stable. `MINI_RL.replace(minibatches=4)` makes 4; the mask then acts from the second step on.

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
