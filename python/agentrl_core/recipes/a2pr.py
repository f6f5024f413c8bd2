"""A2PR: add cloning of the actions that turned out better than expected to a policy gradient (arXiv:2405.19909).

    L = L_policy - 0.1 mean over tokens of 1[A > 0] log p

Only the gate of the paper is here: its main contribution, a variational autoencoder that proposes better actions to
clone, is for offline control with continuous actions and is left out. Both terms are means over the same rows.

Equations:
    Read: the abstract and the public code. The paper's text was not read.

    - C1, critic: left out: the policy gradient has the group as its baseline.
    - C2, value: left out: the same.
    - C3, autoencoder of the behaviour: left out: a language model is a distribution over its answers already. Its gate
      and its denominator, all rows, are those of `Imitation("token_mean", tokens="positive")`.
    - C4, action to copy: left out: without an autoencoder the stored action is the only one.
    - C5, actor: `Sum`, with the gate 0 or 1 of the stored action; the term of Q is `Policy`; not computed:
      the examples have critics.
    - C6, moving averages: left out: there is no critic.

Differs:
    - Weight: 2.5 / mean |Q| on the other term in the code, 0.1 on the cloning here, by choice.
    - Gate: 0, 1 or 2 in the code, 0 or 1 here, as the abstract suggests.
    - Distance: a square of actions in the code, - log p here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Imitation, Policy, Sum

A2PR = Recipe(
    name="a2pr",
    source="arXiv:2405.19909",
    advantage=GroupRelative(),
    loss=Sum(Policy(), Imitation("token_mean", tokens="positive"), second_coefficient=0.1),
)
