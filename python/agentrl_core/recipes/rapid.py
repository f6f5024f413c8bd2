"""RAPID: one large rollout phase feeds several off-policy steps, each with truncated importance weights.

    A = R - b, b the mean of the group
    L = - mean over tokens of sg(min(r, 2)) A log p,   4 minibatches of one rollout phase

There is neither a clip nor a reference. The paper's baseline is weighted by the ratios of the update, b = sum w R / sum
w, whose exact form is not public; at the first step it is the group's mean, which is what stands here for all. How many
steps a phase feeds is tuned for each task.

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
