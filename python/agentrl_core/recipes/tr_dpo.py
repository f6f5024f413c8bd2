"""TR-DPO: direct preference optimisation whose reference follows the policy (arXiv:2404.09656).

    L = - mean over pairs of log sigmoid(0.05 (x_chosen - x_rejected)),   x = sum over the answer of log p - log p_ref
    every 512 optimizer steps:   reference <- 0.6 policy + 0.4 reference

So the policy is not tied to where it began. The hard form replaces the reference: `SyncModel("policy", "reference",
every=512, unit="steps")`. The reference's log-probs have to be annotated anew in every iteration; a step inside one
still sees those of its begin. Its pairs are those of `dpo`.

Needs: groups of two, or the draw column `pair`; the model reference, given to `recipe.updates` by that name.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference
from agentrl_core.schedule import SyncModel

TR_DPO = Recipe(
    name="tr_dpo",
    source="arXiv:2404.09656",
    advantage=GroupRelative(),
    loss=Preference(beta=0.05),
    hooks=SyncModel("policy", "reference", mix=0.6, every=512, unit="steps"),
)
