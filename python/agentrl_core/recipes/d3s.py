"""D3S: train the draws whose advantages vary most, and only their tokens with large advantages and entropies.

    half of the batch's draws, chosen for the largest variance of A; of their tokens the fifth with the largest |A| H
    L = - mean over those tokens of min(r A, clip(r, 0.8, 1.2) A)

H is the entropy of the policy at a token. Advantages are computed from all draws and do not change with the
selection. Both shares grow to (nearly) 1 during training. The sources give neither their final values nor the
duration; the values here are ours. Dropped tokens count in no denominator.

Equations:
    Read: the abstract, notes on the paper, and its public reviews; its text was not read.

    - N1, selection in a group: an option, `SelectDraws(group_by="group_id")`.
    - N2, selection across groups: `SelectDraws(kind="max_variance", group_by="batch")`.
    - N3, selection of tokens: `TopTokens("advantage_entropy")`, over the kept draws of the update.
    - N4, schedule: `Schedule`: both shares follow the number of the iteration.
    - N5, bound: not computed: it bounds the gradient's norm and is not part of the training.
    - N6, loss: `Policy`, with the clip range of PPO.

Differs:
    - Shares: not in the sources; here 0.5 to 1 of the draws and 0.2 to 0.99 of the tokens, over 400 iterations.
    - Denominator: not stated; here the kept tokens; `TopTokens(denominator="all")` counts all tokens.
    - Steps per batch: not stated; 1 here.

Source: arXiv:2509.22115.
"""

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, TopTokens
from agentrl_core.weight import SelectDraws

D3S = Recipe(
    name="d3s",
    source="arXiv:2509.22115",
    advantage=GroupRelative(),
    weight=SelectDraws(kind="max_variance", group_by="batch", fraction=Schedule(start=0.5, end=1.0, iterations=400)),
    loss=Policy(mask=TopTokens("advantage_entropy", Schedule(start=0.2, end=0.99, iterations=400), denominator="kept")),
)
