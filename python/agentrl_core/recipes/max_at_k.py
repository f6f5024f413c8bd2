"""max@k: train for the best of k answers instead of their mean (arXiv:2510.23393).

With the n rewards of a group ascending, an answer is paid what it adds to the expected best of 4 of them:

    R'_i = [C(i-1, 3) R_i + sum over j > i of C(j-2, 2) R_j] / C(n, 4),   A = R'

Its gradient is that of max@k without bias; a group needs at least k answers, better 2 k. Off-policy, to first order:
`reward.MaxAtK(k=4, ratio=...)`. PKPO (arXiv:2505.15201) subtracts what the others reach without it:
`reward.MaxAtK(k=4, kind="leave_one_out")`; verl's `grpo_passk` is `reward.MaxAtK(kind="top_gap", scale="std")`.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import MaxAtK, OutcomeScore

MAX_AT_K = Recipe(
    name="max_at_k",
    source="arXiv:2510.23393",
    reward=(OutcomeScore(), MaxAtK(k=4)),
    advantage=GroupRelative(center="none", scale="none"),
    loss=Policy(),
)
