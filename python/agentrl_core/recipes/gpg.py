"""GPG: use the plain policy gradient with the group mean as baseline (arXiv:2504.02546).

    A_i = alpha (R_i - mean(R)),   L = - mean over all tokens of A_i log p_t

Of the B draws of a batch, M are in groups with equal scores and so have no gradient; alpha = B / (B - M) compensates
for them. There is no ratio, no clip and no reference model. The paper also samples more until 60 % of the groups have a
gradient, which this recipe leaves out. verl counts draws with score 0 in place of M:
`weight.SignalRescale(kind="rows")`.

Equations:
    Read: the authors' code, and notes that copy equations 5 to 8.

    - 5, objective: `Policy` with `Reinforce` and no clip range.
    - 6, advantage: `GroupRelative(scale="none")`.
    - 7 and 8, alpha: `SignalRescale(kind="members")`.
    - C1, threshold: left out: the code samples further batches until 60 % of a batch's groups have a gradient, and none
      of our components admits groups by such a share. `select.DynamicSampling` replaces all groups without a gradient,
      so alpha is 1.
    - C2, loss of the code: `Policy` with `aggregate="sequence_mean"` averages over each response first; the recipe
      averages over tokens, as equation 5 does. The code adds 1e-5 to 1 / alpha; the recipe does not.

Differs:
    - Denominator: equation 5 divides each group by its own number of tokens and averages over groups; the recipe
      divides a batch by the number of all its tokens. Both agree if all groups have equally many tokens.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.weight import SignalRescale

GPG = Recipe(
    name="gpg",
    source="arXiv:2504.02546",
    advantage=GroupRelative(scale="none"),
    weight=SignalRescale(kind="members"),
    loss=Policy(clip=None, surrogate=Reinforce()),
)
