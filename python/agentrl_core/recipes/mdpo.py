"""MDPO, mirror descent policy optimisation: no clip, but a divergence from the last iterate that costs more and more.

    L = - mean over tokens of r A + (1 / t_k) KL(p || p_old),   t_k from 1 to 0.01 over the training

The divergence is that from the policy which sampled, k3 on its tokens. Several steps are taken on a batch, each from
where the last one led; at the first all divergences are 0. The paper's t_k falls to 0; here 1 / t_k ends at 100, and A
is the reward less the mean of its group. With squares it is `loss.Regression(beta=...)`: (beta log r - A)^2.

Source: arXiv:2005.09814.
"""

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy

MDPO = Recipe(
    name="mdpo",
    source="arXiv:2005.09814",
    advantage=GroupRelative(scale="none"),
    loss=Policy(clip=None, drift=KL(Schedule(1.0, 100.0, iterations=1000, kind="inverse"))),
    minibatches=4,
)
