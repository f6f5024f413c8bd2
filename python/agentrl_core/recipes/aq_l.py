"""AQ-L (annealed Q), applied to trees: value a node by nearly its best branch at first, and by their mean at the end.

    V(node) = argmin over v of sum over its children of |tau - 1[V_child < v]| (V_child - v)^2,   tau from 0.9 to 0.5
    A of a step = V(node) less the mean of its siblings

Early on values are the expectile of what may still be found, so that learning is bold; later they are those of the
policy itself. Left out: the critic and its targets, since all branches below a node have scores: V is what the paper's
critic loss leads to. That siblings are compared is ours.

Equations:
    Read: the abstract and two notes of others; the paper's text was not read.

    - N1, critic loss: `TreeRelative(fuse="expectile")`, the value at which this loss of a node's branches is least.
    - N2, target of TD3: left out: without a critic there is nothing to bootstrap from; `td3` has this target.
    - N3, target of SAC: left out: the same.
    - N4, annealing: `Schedule(0.9, 0.5)`, linear in the iterations.

Differs:
    - Length of the annealing: not stated; 200 iterations here.
    - Discount: 0.99 in the notes, none here: a score is of a whole branch.
    - Clip: none in the notes, whose actor follows the critic; 0.2 of the policy's loss here.

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
