"""RLOO: REINFORCE with a leave-one-out baseline (arXiv:2402.14740).

    A_i = R_i - mean(R_j, j != i),   L = - mean_i A_i sum_t log p_t

An answer is one action: the log-probs of its tokens are summed, and not divided by the length. There is neither a ratio
nor a clip range. The paper's reward includes -beta KL to a reference. This recipe leaves it out; add `loss.KL` for a
penalty in the loss instead.

Equations:
    Read: the abstract, the documentation of TRL and verl's code; the paper's text was not read.

    - N1 and N2, KL in the reward: left out: the source gives no coefficient. `GreedyRelative` and `Discounted` have a
      coefficient for the KL of each token; `loss.KL` is a penalty in the loss.
    - N3, advantage: `GroupRelative(center="leave_one_out", scale="none")`.
    - N4, loss: `Reinforce` in `Policy(clip=None, aggregate="constant")`, a sum over tokens, then a mean over rollouts.
    - C1, a group of one: the advantage is 0; one of verl's two forms keeps the reward, the other gives 0.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.rollout import Independent

RLOO = Recipe(
    name="rloo",
    source="arXiv:2402.14740",
    rollout=Independent(),
    advantage=GroupRelative(center="leave_one_out", scale="none"),
    loss=Policy(clip=None, surrogate=Reinforce(), aggregate="constant", constant=1.0),
)
