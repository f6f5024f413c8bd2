"""BNPO: divide rewards of 0 and 1 by a Beta density that is fitted to the batch's pass rates (arXiv:2506.02864).

    A = (R - p) / Beta(p; alpha, beta),   p = mean R of the group
    alpha = 1 + a/3, beta = 1 + b/3, at least 1, with a = (m (1 - m)/v - 1) m, b = (m (1 - m)/v - 1)(1 - m)

m and v are the mean and variance (n - 1) of p over the batch's groups. Beta(1, 1) is REINFORCE with the group's mean as
baseline, Beta(3/2, 3/2) is GRPO up to a constant. Several rewards are normalised separately and averaged; for two
rewards use `GroupRelative(column="reward.accuracy", scale="beta", coefficient=0.5)` and
`GroupRelative(column="reward.format", scale="beta", coefficient=0.5, add=True)`.

Equations:
    Read: the abstract, the code, and a public review.

    - C1, pass rates: `GroupRelative(scale="beta")`; each group counts once.
    - C2, C3, Beta of the pass rates and of the normalisation: `GroupRelative(scale="beta")`.
    - C4, advantage: `GroupRelative(scale="beta")`; 1 / density is at most 1e6.
    - C5, advantage decomposition: one `GroupRelative` per reward, see above; off in the script, so not in the recipe.
    - C6, loss: `Policy`, the sum over the tokens of an answer, averaged over answers.

Differs:
    - A group of one: the code compares its reward with 0, where the density may be 0, so its advantage may be 1e6; here
      the advantage is 0.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy

BNPO = Recipe(
    name="bnpo",
    source="arXiv:2506.02864",
    advantage=GroupRelative(scale="beta"),
    loss=Policy(clip=Clip(0.2, 0.28, dual=10.0), aggregate="constant", constant=1.0),
)
