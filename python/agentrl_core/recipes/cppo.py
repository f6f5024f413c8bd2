"""CPPO: prune completions that would hardly move the policy, before their forward pass (arXiv:2503.22342).

    A = (R - mean) / (std + 1e-4) over the whole group; the half of it with the largest |A| is trained
    L = mean_i mean_t (- min(r A, clip(r, 0.8, 1.2) A) + 0.04 KL(reference)) over the kept completions, for two epochs

The paper prunes up to 15/16 of the completions and fills the freed room with more tasks: request
n / (1 - pruned share) groups from the collector in place of n. verl's port selects over the batch:
`weight.SelectDraws(fraction=0.5, group_by="batch")`.

Equations:
    Read: the public code, the abstract and notes of others; the paper's text was not read.

    - C1, advantage: `GroupRelative`, std of n - 1 and 1e-4 added to it, over the whole group.
    - 8, number that stays: `SelectDraws(fraction=1 - P)`, rounded down.
    - C2, pruning over the batch: an option, `SelectDraws(group_by="batch")`.
    - 9, objective: `Policy`, `aggregate="sequence_mean"`, over the kept draws.
    - C3, loss of the first code: an option, `aggregate="token_mean"`.
    - C4, dynamic allocation: the number of groups that is requested from the collector; as many completions are kept as
      without pruning.
    - 7, threshold: an option, `SelectDraws(at_least=gamma)`.

Differs:
    - Pruned share: 0.5 to 0.9375 in the paper, with 0.875 best on GSM8K; 0.5 here.
    - Rewards: accuracy and format with weights of 1 in the source; the reward of the environment here.

Needs: the model `reference`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.weight import SelectDraws

CPPO = Recipe(
    name="cppo",
    source="arXiv:2503.22342",
    advantage=GroupRelative(eps=1e-4),
    weight=SelectDraws(fraction=0.5),
    loss=Policy(aggregate="sequence_mean", kl=KL(0.04)),
    epochs=2,
)
