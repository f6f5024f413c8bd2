"""GDPO: normalise each reward separately, so that different mixtures of rewards stay different (arXiv:2601.05242).

    A_i = sum over rewards k of (R_ik - mean_k) / (std_k + 1e-6) of the group
    A = (A - mean) / (std + 1e-4) over the draws of the batch

The recipe has two rewards, each with weight 1 (`coefficient`). If a reward should only count when a harder one passes,
make it the environment's reward, gate it by `reward=(OutcomeScore(), CombineReward(column="reward.correct",
kind="require"))`, and normalise the column `score` instead of `reward.format`.

Equations:
    Read: the paper's sections 2, 3, 4.1 and 4.2.1 and its appendices, and the public code.

    - 3, objective: `Policy`, clip range 0.2, mean over the tokens of a rollout, then over rollouts; `KL(0.001)`, the
      coefficient of the paper's tool-calling runs.
    - 4, advantage of one reward: `GroupRelative(column="reward.correct")`, std with divisor n - 1, plus 1e-6.
    - 6, batch normalisation: the last `GroupRelative`, over rollouts.
    - 7, weighted sum: `GroupRelative(add=True)`, weights 1 as in equation 5.
    - 8, conditioned reward: an option, `CombineReward(kind="require")` as above.
    - C3, batch normalisation over tokens: an option, the last component with
      `voter="token", eps=0.0, variance_eps=1e-8`.
    - C5, group of one: 0 here; `singleton="raw"` in the first two components gives the raw rewards, as in verl.

Differs:
    - Epsilon of a group: none in the paper; 1e-6 in the verl version and here; 1e-4 in the TRL version.
    - Mean and KL: the loss of the verl version has one mean over all tokens and no KL penalty.
    - Batch normalisation: over tokens in the verl version; over rollouts in the paper, the TRL version and here.
    - Math and code: these runs have clip range 0.2 to 0.28, leave out groups whose rewards are all equal, and have
      eight optimizer steps a batch and a squared KL with coefficient 0.0005; the recipe uses the tool-calling settings.
    - A missing reward: 0 in the TRL version; left out of the statistics and of the sum here.

Needs: the reward components `correct` and `format`; the reference model.
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
