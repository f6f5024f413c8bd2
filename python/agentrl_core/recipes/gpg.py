"""GPG: the plain policy gradient with a group's mean as baseline (arXiv:2504.02546).

    A_i = alpha (R_i - mean(R)),   L = - mean over all tokens of A_i log p_t

alpha = B / (B - M) makes up for the M of B draws whose group has equal scores and which therefore have no gradient. No
ratio, no clip, no reference. The paper also samples more until 60 % of the groups have a gradient, which this recipe
leaves out. verl counts draws whose score is 0 in place of M: `weight.SignalRescale(kind="rows")`.

Equations:
    Read: the authors' code, and notes that copy equations 5 to 8.

    - 5, objective: `Policy` with `Reinforce` and no clip range.
    - 6, advantage: `GroupRelative(scale="none")`.
    - 7 and 8, alpha: `SignalRescale(kind="members")`.
    - C1, threshold: left out: the code samples further batches until 60 % of a batch's groups have a gradient; no
      component admits by such a share. `select.DynamicSampling` replaces all groups without a gradient, and alpha is 1.
    - C2, loss of the code: `Policy`, `aggregate="sequence_mean"`, averages each response first; the recipe averages
      over tokens, as equation 5 does. The 1e-5 that the code adds to 1 / alpha is not added.

Differs:
    - Denominator: equation 5 divides each group by its own tokens and averages the groups; a batch here by all its
      tokens. The two agree if groups have equally many tokens.
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
