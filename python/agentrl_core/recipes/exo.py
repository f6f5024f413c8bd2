"""EXO: fit the policy's softmax over a group's answers to the softmax of rewards, mode-seeking (arXiv:2402.00856).

    P = softmax of 0.5 x,  x = sum of log p - log p_ref;   Q = softmax of R / 0.5;   L = mean over groups of KL(P || Q)

DPO minimises KL(Q || P), which covers modes: `ListMatch(direction="forward")`. The advantage is the reward minus the
group's mean, which gives the same Q; dividing it by a spread would give a different Q. If only pairs and no rewards are
known, use rewards of 1 and 0 with `ListMatch(temperature=0.1)`: this is the code's target for pairs, log Q = 0 and -10.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, distribution of the policy: `ListMatch`, with sums over the policy's tokens.
    - C2, distribution of the reward: `GroupRelative(scale="none")` and `ListMatch`.
    - C3, loss: `ListMatch(direction="reverse")`, the mean over groups of any size.
    - C4, DPO with rewards: an option, `ListMatch(direction="forward")`.

Differs:
    - Target of a pair: the code's target sums to 1 + exp(-10), the target of `temperature=0.1` sums to 1; the gradient
      is the same.
    - KL: there is no separate KL term; the log-ratio to the reference model includes it, with 0.5 for both
      temperatures.

Needs: the reference model.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import ListMatch

EXO = Recipe(name="exo", source="arXiv:2402.00856", advantage=GroupRelative(scale="none"), loss=ListMatch())
