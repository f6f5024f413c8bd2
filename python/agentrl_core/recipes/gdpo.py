"""GDPO: several rewards are compared each by itself, so that different mixtures stay different (arXiv:2601.05242).

    A_i = sum over rewards k of (R_ik - mean_k) / (std_k + 1e-6) of the group
    A = (A - mean) / (std + 1e-4) over the draws of the batch

Two rewards stand here, each with weight 1 (`coefficient`). A reward that only counts if a harder one passes: let it be
the environment's reward, gate it by `reward=(OutcomeScore(), CombineReward(column="reward.correct", kind="require"))`,
and compare the column `score` in the place of `reward.format`.

Equations:
    Read: the paper's sections 2, 3, 4.1 and 4.2.1 and its appendices, and the public code.

    - 3, objective: `Policy`, clip range 0.2, mean over the tokens of a rollout, then over rollouts; `KL(0.001)`, the
      coefficient of its tool-calling runs.
    - 4, advantage of one reward: `GroupRelative(column="reward.correct")`, std of n - 1 and 1e-6 added to it.
    - 6, batch normalisation: the last `GroupRelative`, over rollouts.
    - 7, weighted sum: `GroupRelative(add=True)`, weights 1 as in equation 5.
    - 8, conditioned reward: an option, `CombineReward(kind="require")` as above.
    - C3, batch normalisation over tokens: an option, the last link with `voter="token", eps=0.0, variance_eps=1e-8`.
    - C5, group of one: 0 here; verl's rewards as they are would be `singleton="raw"` in the first two links.

Differs:
    - Epsilon of a group: none in the paper; 1e-6 in the verl version, as here; 1e-4 in the TRL version.
    - Mean and KL: one mean over all tokens and no KL in the loss of the verl version.
    - Batch normalisation: over tokens in the verl version; over rollouts in the paper, the TRL version and here.
    - Math and code: clip range 0.2 to 0.28, groups of equal rewards left out, eight optimizer steps a batch and a
      squared KL of 0.0005; here the settings of tool calling.
    - A missing reward: 0 in the TRL version; here it neither votes nor counts.

Needs: the reward's components `correct` and `format`; the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy

GDPO = Recipe(
    name="gdpo",
    source="arXiv:2601.05242",
    advantage=(
        GroupRelative(column="reward.correct", add=True),
        GroupRelative(column="reward.format", add=True),
        GroupRelative(column="advantage", group_by="batch", eps=1e-4),
    ),
    loss=Policy(aggregate="sequence_mean", kl=KL(0.001)),
    minibatches=4,
)
