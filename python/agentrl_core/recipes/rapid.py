"""RAPID: use one large rollout phase for several off-policy steps, each with truncated importance weights.

    A = R - b, b the mean of the group
    L = - mean over tokens of sg(min(r, 2)) A log p,   4 minibatches of one rollout phase

There is neither a clip nor a reference. The paper's baseline is weighted by the ratios of the update, b = sum w R /
sum w or sum w R / G. The weighting is left out, since no source that was read has its form. Here b is the group's
mean, which both formulas give at the first step. The number of steps per phase is tuned for each task.

Equations:
    Read: the abstract, and public reviews of the paper; its text was not read.

    - N1, group advantage: `GroupRelative(scale="none")`.
    - N2, weight: `Reinforce("ratio", "ratio", at_most=2.0)`, of each token.
    - N3, off-policy estimator: `Policy(surrogate=Reinforce(...))` with the unweighted baseline; left out: the weights
      of b, see above.
    - N4, alternation: `minibatches=4`, with new weights at each step.

Differs:
    - Baseline: weighted by w in the paper, the mean of the group here.
    - Weight: per token here; the reviews do not state its level, and a weighted reward suggests the response.

Source: RAPID: An Efficient Reinforcement Learning Algorithm for Small Language Models (arXiv:2510.03515).
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Reinforce

RAPID = Recipe(
    name="rapid",
    source="arXiv:2510.03515",
    advantage=GroupRelative(scale="none"),
    loss=Policy(clip=None, surrogate=Reinforce("ratio", "ratio", at_most=2.0)),
    minibatches=4,
)
