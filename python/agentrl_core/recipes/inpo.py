"""INPO: pairs of answers move the policy towards the Nash equilibrium of a preference game (arXiv:2407.00617).

    h = [log p - (tau/eta) log p_ref - (1 - tau/eta) log p_old] of the preferred answer, less that of the other
    L = mean over pairs of (h - 1 / (2 eta))^2

No win rate is estimated: a pair has a winner. p_old is the previous iterate, which made the answers; an iteration is
repeated with fresh pairs. eta = 0.0075, tau = eta / 3. The best and the worst of larger groups are paired by
`INPO.replace(replay=Pairs())`.

Equations:
    Read: two ports by others, and notes; the paper's text was not read.

    - C1, log-ratio margin: `Preference(reference_share=1 / 3)`.
    - C2, loss: `Preference(kind="square", beta=0.0075)`.
    - N1, pairs: groups of two here; of larger ones, as the paper's 8, the option `replay=Pairs()`.
    - N2, iteration: the denominator is the policy that sampled the pair (`old_logprob`).

Differs:
    - eta: 0.0075 in one port, which calls it the paper's; 0.002 in the other.
    - Optimizer steps a batch: epochs over the pairs of an iteration in the source; here 1 for each batch, which is an
      iteration.

Needs: groups of two, or the draw column `pair`; the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference

INPO = Recipe(
    name="inpo",
    source="arXiv:2407.00617",
    advantage=GroupRelative(),
    loss=Preference(kind="square", beta=0.0075, reference_share=1 / 3),
)
