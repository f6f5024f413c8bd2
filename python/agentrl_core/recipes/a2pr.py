"""A2PR: add to a policy gradient the cloning of actions that were better than expected (arXiv:2405.19909).

    L = L_policy - 0.1 mean over tokens of 1[A > 0] log p

Only the paper's gate is here. Its main contribution, a variational autoencoder that proposes better actions to clone,
is for offline control with continuous actions and is left out. Both terms are means over the same rows.

Equations:
    Read: the abstract and the public code. The paper's text was not read.

    - C1, critic: left out: the policy gradient uses the group as its baseline.
    - C2, value: left out: for the same reason.
    - C3, autoencoder of the behaviour: left out: a language model already is a distribution over answers. The gate of
      this equation and its denominator (all rows) are used by `Imitation("token_mean", tokens="positive")`.
    - C4, action to copy: left out: without an autoencoder the stored action is the only candidate.
    - C5, actor: `Sum`; the gate of the stored action is 0 or 1, and `Policy` replaces the term of Q; not computed:
      the examples have critics.
    - C6, moving averages: left out: there is no critic.

Differs:
    - Weight: the code multiplies the term of Q by 2.5 / mean |Q|; here the cloning term has weight 0.1, by choice.
    - Gate: 0, 1 or 2 in the code; 0 or 1 here, as the abstract suggests.
    - Distance: a squared distance of actions in the code; - log p here.
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
