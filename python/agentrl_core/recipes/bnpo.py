"""BNPO: rewards of 0 and 1 divided by a density that is fitted to how hard the batch's tasks are (arXiv:2506.02864).

    A = (R - p) / Beta(p; alpha, beta),   p = mean R of the group
    alpha = 1 + a/3, beta = 1 + b/3, at least 1, with a = (m (1 - m)/v - 1) m, b = (m (1 - m)/v - 1)(1 - m)

m and v are mean and variance (n - 1) of p over the batch's groups. Beta(1, 1) is REINFORCE with the group's mean,
Beta(3/2, 3/2) GRPO up to a constant. Several rewards are normalised each by itself and added up: links with
`GroupRelative(column="reward.format", scale="beta", add=True)`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

BNPO = Recipe(name="bnpo", source="arXiv:2506.02864", advantage=GroupRelative(scale="beta"), loss=Policy())
