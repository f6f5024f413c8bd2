"""GDPO: several rewards are compared each by itself, so that different mixtures stay different (arXiv:2601.05242).

    A_i = sum over rewards k of (R_ik - mean_k) / (std_k + 1e-6) of the group
    A = (A - mean) / (std + 1e-4) over the draws of the batch

Two rewards stand here, each with weight 1 (`coefficient`). A reward that only counts if a harder one passes: let it be
the environment's reward, gate it by `reward=(OutcomeScore(), CombineReward(column="reward.correct", kind="require"))`,
and compare the column `score` in the place of `reward.format`.

Equations:
    Read: the public code, the abstract and notes of others; the paper's text was not read.

    - C1, advantage of one reward: `GroupRelative(column="reward.correct")`, std of n - 1 and 1e-6 added to it.
    - C2, sum: `GroupRelative(add=True)`, weights 1.
    - C3, batch normalisation over tokens: an option, the last link with `voter="token", eps=0.0, variance_eps=1e-8`.
    - C4, batch normalisation over rows: the last `GroupRelative`.
    - C5, group of one: 0 here; verl's rewards as they are would be `singleton="raw"` in the first two links.
    - C6, loss: `Policy`, clip range 0.2, mean over tokens.
    - N1, conditioned reward: an option, `CombineReward(kind="require")` as above.

Differs:
    - Epsilon of a group: 1e-6 in the verl version, as here; 1e-4 in the TRL version.
    - Batch normalisation: over tokens in the verl version; over responses in the TRL version and here.
    - A missing reward: 0 in the TRL version; here it neither votes nor counts.

Needs: the reward's components `correct` and `format`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

GDPO = Recipe(
    name="gdpo",
    source="arXiv:2601.05242",
    advantage=(
        GroupRelative(column="reward.correct", add=True),
        GroupRelative(column="reward.format", add=True),
        GroupRelative(column="advantage", group_by="batch", eps=1e-4),
    ),
    loss=Policy(),
    minibatches=4,
)
