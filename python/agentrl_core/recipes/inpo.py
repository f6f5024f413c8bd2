"""INPO: pairs of answers move the policy towards the Nash equilibrium of a preference game (arXiv:2407.00617).

    h = [log p - (tau/eta) log p_ref - (1 - tau/eta) log p_old] of the preferred answer, less that of the other
    L = mean over pairs of (h - 1 / (2 eta))^2

No win rate is estimated: a pair has a winner. p_old is the previous iterate, which made the answers; an iteration is
repeated with fresh pairs. eta and tau are not given; here 0.005 and a third of it.

Needs: groups of two, or the draw column `pair` (the paper: best and worst of 8); the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference

INPO = Recipe(
    name="inpo",
    source="arXiv:2407.00617",
    advantage=GroupRelative(),
    loss=Preference(kind="square", beta=0.005, reference_share=1 / 3),
)
