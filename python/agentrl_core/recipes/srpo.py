"""SRPO: a failure is paid by how near it came to the group's own successes (arXiv:2511.15605).

    R = 1 of a success, 0.6 sigmoid(10 (1/2 - d)) of a failure,   A = (R - mean) / std
    d = distance of its embedding to the nearest cluster of successes, 0 for the nearest failure and 1 for the furthest

Tasks solved in fewer than 1 of 10 or more than 9 of 10 rollouts leave the loss. An embedding of zeros has no place and
scores 0 even where it succeeded, as in the public code; `reward.SuccessDistance(zero_embedding="keep")` keeps it.

Needs: the facts `embedding.0`, `embedding.1`, ... of trajectories (of a world model, or a sentence encoder), and which
succeeded.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import SuccessDistance
from agentrl_core.select import Band
from agentrl_core.weight import GroupFilter

SRPO = Recipe(
    name="srpo",
    source="arXiv:2511.15605",
    reward=SuccessDistance(),
    advantage=GroupRelative(),
    weight=GroupFilter(column="success", band=Band(at_least=0.1, at_most=0.9)),
    loss=Policy(),
)
