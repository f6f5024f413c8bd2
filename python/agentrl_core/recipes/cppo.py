"""CPPO: completions that hardly move the policy are left out before they cost a forward pass (arXiv:2503.22342).

    A = (R - mean) / (std + 1e-4) over all of the group; of it the half with the largest |A| is trained
    L = mean_i mean_t (- min(r A, clip(r, 0.8, 1.2) A) + 0.04 KL(reference)) over what is kept, twice

The share that is pruned goes up to 15/16 in the paper, which fills the freed room with more tasks: ask the collector
for n / (1 - pruned share) groups in the place of n. verl's port selects over the batch:
`weight.SelectDraws(fraction=0.5, group_by="batch")`.

Equations:
    Read: the public code, the abstract and notes of others; the paper's text was not read.

    - C1, advantage: `GroupRelative`, std of n - 1 and 1e-4 added to it, over all of a group.
    - 8, number that stays: `SelectDraws(fraction=1 - P)`, rounded down.
    - C2, pruning over the batch: an option, `SelectDraws(group_by="batch")`.
    - 9, objective: `Policy`, `aggregate="sequence_mean"`, over the draws that are kept.
    - C3, loss of the first code: an option, `aggregate="token_mean"`.
    - C4, dynamic allocation: the collector's number of groups; as many kept completions as without pruning.
    - 7, threshold: an option, `SelectDraws(at_least=gamma)`.

Differs:
    - Pruned share: 0.5 to 0.9375 in the paper, with 0.875 best on GSM8K; 0.5 here.
    - Rewards: accuracy and format with weights of 1; here the reward of the environment.

Needs: the model reference.
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
