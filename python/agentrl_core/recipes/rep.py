"""REP: REINFORCE on group-relative rewards, held near the sampling policy by a squared log-ratio (arXiv:2509.24203).

    L = mean over tokens of [ - A log p_t + 0.1 (log p_t - log p_old,t)^2 ],   A = R - mean R

It is the loss of Kimi k1.5 and of OPMD up to constants, and the sibling of `rec`. AsymRE, the likelihood of what was
sampled: `drift=KL(0.1, "k1", direction="forward")`, or the shifted baseline `GroupRelative(scale="none", shift=0.1)`.

Equations:
    Read: the authors' code, and a note of others; the paper's text was not read.

    - C1, advantage: `GroupRelative(scale="none")`.
    - C2, OPMD: `Policy(drift=KL(0.2, "k2"))`: k2 is half the square.
    - C3, AsymRE: `drift=KL(0.1, "k1", direction="forward")`, an option; its value also has the constant of p_old.
    - N1, OPMD of the paper: left out: the square there is of the log-ratio of a whole answer; the penalties of `Policy`
      are of tokens, as in the code.
    - N2, AsymRE of the paper: `GroupRelative(scale="none", shift=0.1)` without `drift`, an option.

Differs:
    - KL: none to a reference; the penalty is on the policy that sampled.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy, Reinforce

REP = Recipe(
    name="rep",
    source="arXiv:2509.24203",
    advantage=GroupRelative(scale="none"),
    loss=Policy(clip=None, surrogate=Reinforce(), drift=KL(0.2, "k2")),
)
