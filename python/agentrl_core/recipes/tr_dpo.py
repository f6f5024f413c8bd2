"""TR-DPO: direct preference optimisation whose reference follows the policy (arXiv:2404.09656).

    L = - mean over pairs of log sigmoid(0.05 (x_chosen - x_rejected)),   x = sum over the answer of log p - log p_ref
    every 512 optimizer steps:   reference <- 0.6 policy + 0.4 reference

So the policy is not tied to where it began. Its pairs are those of `dpo`.

Equations:
    Read: the abstract, public reviews, and a public port; the paper's text was not read.

    - P1, loss: `Preference(beta=0.05)`.
    - P2, soft update: `SyncModel("policy", "reference", mix=0.6, every=512, unit="steps")`.
    - P3, hard update: an option, the same without `mix`.
    - P4, TR-IPO: an option, `Preference(kind="square", reduce="mean", beta=0.05)`.

Differs:
    - Interval of the soft update: the reviews give 0.6 for soft and 512 steps for hard updates, two variants; how often
      the soft one comes was not read. The port has both numbers at once, and so does this recipe.
    - Reference within an iteration: the port computes its log-probs at each step; here they are annotated in each
      iteration, and a step after an update of the same iteration still reads those of its begin.
    - Steps: of the whole run, as in the port.

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
