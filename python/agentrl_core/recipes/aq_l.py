"""AQ-L (annealed Q), applied to trees: value a node by nearly its best branch at first, and by their mean at the end.

    V(node) = argmin over v of sum over its children of |tau - 1[V_child < v]| (V_child - v)^2,   tau from 0.9 to 0.5
    A of a step = V(node) less the mean of its siblings

Early on values are the expectile of what may still be found, so that learning is bold; later they are those of the
policy itself. In the paper a critic learns an expectile of its targets; here the values below a node are at hand. That
siblings are compared is ours.

Source: arXiv:2506.05968. Needs: rollouts that share steps.
"""

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import Normalisation, TreeRelative
from agentrl_core.loss import Policy

AQ_L = Recipe(
    name="aq_l",
    source="arXiv:2506.05968",
    advantage=TreeRelative(
        fuse="expectile",
        expectile=Schedule(0.9, 0.5, iterations=200),
        kind="sibling",
        normalisation=Normalisation(scale="none"),
    ),
    loss=Policy(),
)
