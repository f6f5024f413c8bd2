"""f-DPO: preferences under another divergence from the reference than the reverse KL (arXiv:2309.16240).

    L = - mean over pairs of log sigmoid(0.1 (g(x_chosen) - g(x_rejected))),   x = sum of log p - log p_ref
    g(x) = -exp(-x / 2) / (1/2)   of the alpha-divergence with alpha = 1/2

`Preference(divergence=...)` has also `forward_kl`, `js` and `reverse_kl`, which is DPO. x is bounded at 20 either way.

Needs: pairs, as in DPO; the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference

F_DPO = Recipe(name="f_dpo", source="arXiv:2309.16240", advantage=GroupRelative(), loss=Preference(divergence="alpha"))
