"""Cloning that keeps a divergence from the reference, as a start that leaves room for preferences (SFT as DPO's kin).

    L = - mean over demonstrations of the mean over tokens of min(2 u, 10) log p,   u = p / p_ref within exp(+-5)

Cloning learns an implicit reward beta f'(u), of which plain likelihood drops the divergence. Its weight is u f''(u):
2 u for Pearson's chi squared (here), 1 for the KL, u^(-1/2) / 2 for Hellinger's (`kind="hellinger"`). It is the stage
`warm_start`; the preferences of `dpo` follow. The paper's objectives are not public: the form is derived.

Source: Implicit Reward as the Bridge: A Unified View of SFT and DPO Connections (arXiv:2507.00018). Needs:
demonstrations; then pairs; the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Imitation, Preference, Train

IMPLICIT_REWARD = Recipe(
    name="implicit_reward",
    source="arXiv:2507.00018",
    advantage=GroupRelative(),
    loss=(Train(Imitation(kind="chi_squared"), stage="warm_start"), Train(Preference(beta=0.1))),
)
