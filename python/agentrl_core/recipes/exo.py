"""EXO: fit the policy's softmax over a group's answers to that of their rewards, mode-seeking (arXiv:2402.00856).

    P = softmax of 0.5 x,  x = sum of log p - log p_ref;   Q = softmax of R / 0.5;   L = mean over groups of KL(P || Q)

DPO fits them the other way round, which covers modes: `ListMatch(direction="forward")`. The advantage is the reward
less the group's mean, which gives the same Q; dividing it by a spread gives another.

Needs: the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import ListMatch

EXO = Recipe(name="exo", source="arXiv:2402.00856", advantage=GroupRelative(scale="none"), loss=ListMatch())
