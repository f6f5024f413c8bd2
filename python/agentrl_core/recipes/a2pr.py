"""A2PR: add cloning of the actions that turned out better than expected to a policy gradient (arXiv:2405.19909).

    L = L_policy - 0.1 mean over tokens of 1[A > 0] log p

The gate is what is of use here; the paper's learned behaviour model (a variational autoencoder) clones actions that it
makes, which answers of a language model do not need. The coefficient is ours.
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
