"""f-DPO: learn preferences with another divergence from the reference than the reverse KL (arXiv:2309.16240).

    L = - mean over pairs of log sigmoid(0.1 (g(x_chosen) - g(x_rejected))),   x = sum of log p - log p_ref
    g(x) = -exp(-x / 2) / (1/2)   for the alpha-divergence with alpha = 1/2

`Preference(divergence=...)` also offers `forward_kl`, `js` and `reverse_kl`, which is DPO.

Equations:
    Read: the authors' code and its README; the paper's text was not read.

    - C1, loss: `Preference`, beta 0.1.
    - C2, reverse KL: an option, `Preference(divergence="reverse_kl")`.
    - C3, forward KL: an option, `Preference(divergence="forward_kl")`.
    - C4, Jensen-Shannon: an option, `Preference(divergence="js")`.
    - C5, alpha divergence: `Preference(divergence="alpha")`, alpha 1/2.
    - C6, implicit reward: its difference within a pair is the metric `margin`.

Differs:
    - KL: the code's scripts for the alpha divergence have beta 0.1, 0.3 and 0.9; 0.1 here.
    - Alpha: the scripts have 0.3, 0.5 and 0.7; 0.5 here.
    - Optimizer steps a batch: 1 in the code and here; the code makes one pass, with 64 pairs a step.
    - Bound of the log-ratio: the code bounds it only in the Jensen-Shannon form; here x is clipped to +-20 in the
      exponentials.

Needs: pairs, as in DPO; the reference model.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference

F_DPO = Recipe(name="f_dpo", source="arXiv:2309.16240", advantage=GroupRelative(), loss=Preference(divergence="alpha"))
