"""TR-DPO: direct preference optimisation with a reference model that follows the policy (arXiv:2404.09656).

    L = - mean over pairs of log sigmoid(0.05 (x_chosen - x_rejected)),   x = sum over the answer of log p - log p_ref
    every 512 optimizer steps:   reference <- 0.6 policy + 0.4 reference

So the policy is not tied to its initial weights. Pairs are formed as in `dpo`.

Equations:
    Read: the abstract, public reviews, and a public port; the paper's text was not read.

    - P1, loss: `Preference(beta=0.05)`.
    - P2, soft update: `SyncModel("policy", "reference", mix=0.6, every=512, unit="steps")`.
    - P3, hard update: an option, the same hook without `mix`.
    - P4, TR-IPO: an option, `Preference(kind="square", reduce="mean", beta=0.05)`.

Differs:
    - Interval of the soft update: the reviews give 0.6 for soft and 512 steps for hard updates, two variants; how
      often soft updates come was not read. The port has both numbers at once, and so does this recipe.
    - Reference within an iteration: the port computes reference log-probs at each step; here they are annotated once in
      each iteration. After an update of the reference, later steps of the iteration still read the log-probs from its
      start.
    - Steps: counted over the whole run, as in the port.

Needs: groups of two, or the draw column `pair`; the reference model, passed to `recipe.updates` as `reference`.
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
