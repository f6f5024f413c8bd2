"""AQ-L (annealed Q), applied to trees: value a node by nearly its best branch at first, by the branches' mean later.

    V(node) = argmin over v of sum over its children of |tau - 1[V_child < v]| (V_child - v)^2,   tau from 0.9 to 0.5
    A of a step = V(node) - mean V of its siblings

Early values are expectiles close to the best result that can still be found, so learning is bold; later values are
those of the policy itself. Left out: the critic and its targets. All branches below a node have scores, so V is
computed as the minimiser of the paper's critic loss. The comparison of siblings is our choice.

Equations:
    Read: the abstract and two notes of others; the paper's text was not read.

    - N1, critic loss: `TreeRelative(fuse="expectile")`, the value that minimises this loss over a node's branches.
    - N2, target of TD3: left out: without a critic nothing is bootstrapped; `td3` has this target.
    - N3, target of SAC: left out: as N2.
    - N4, annealing: `Schedule(0.9, 0.5)`, linear in the iterations.

Differs:
    - Length of the annealing: not stated; 200 iterations here.
    - Discount: 0.99 in the notes; none here, because a score belongs to a whole branch.
    - Clip: none in the notes, whose actor follows the critic; 0.2 in the policy's loss here.

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
