"""INPO: move the policy towards the Nash equilibrium of a preference game, by pairs of answers (arXiv:2407.00617).

    h = [log p - (tau/eta) log p_ref - (1 - tau/eta) log p_old] of the preferred answer, minus the same of the other
    L = mean over pairs of (h - 1 / (2 eta))^2

No win rate is estimated: each pair has a winner. p_old is the policy of the previous iteration, which sampled the
answers; an iteration is repeated with fresh pairs. eta = 0.0075, tau = eta / 3. To pair the best and the worst answer
of larger groups, use `INPO.replace(replay=Pairs())`.

Equations:
    Read: two ports by others, and notes; the paper's text was not read.

    - C1, log-ratio margin: `Preference(reference_share=1 / 3)`.
    - C2, loss: `Preference(kind="square", beta=0.0075)`.
    - N1, pairs: groups of two here; for larger groups, such as the paper's 8, the option `replay=Pairs()`.
    - N2, iteration: the denominator is the policy that sampled the pair (`old_logprob`).

Differs:
    - eta: 0.0075 in one port, which attributes it to the paper; 0.002 in the other port.
    - Optimizer steps a batch: the source makes epochs over the pairs of an iteration; here each batch is an iteration
      and has 1 step.

Needs: groups of two, or the draw column `pair`; the reference model.
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
