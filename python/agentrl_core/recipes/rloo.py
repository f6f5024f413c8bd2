"""RLOO: REINFORCE with a leave-one-out baseline (arXiv:2402.14740).

    A_i = R_i - mean(R_j, j != i),   L = - mean_i sum_t r_t A_i

with the ratio r in place of log p: same gradient at the behaviour policy, and no clip. The sum over tokens is not
divided by the length, as in the paper. The paper's reward includes -beta KL to a reference; add `loss.KL` for a penalty
in the loss instead.

Equations:
    Read: the abstract, the documentation of TRL and verl's code; the paper's text was not read.

    - N1 and N2, KL in the reward: left out: the source names no coefficient. `GreedyRelative` and `Discounted` have
      one by token; `loss.KL` is a penalty in the loss.
    - N3, advantage: `GroupRelative(center="leave_one_out", scale="none")`.
    - N4, loss: `Policy(clip=None, aggregate="constant")`, the sum over tokens of the mean over rollouts.
    - C1, a group of one: the advantage is 0; one of verl's two forms keeps the reward, the other gives 0.

Differs:
    - Ratio: the paper's loss is of log p. The ratio has the same gradient at the one step that a batch has.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.rollout import Independent

RLOO = Recipe(
    name="rloo",
    source="arXiv:2402.14740",
    rollout=Independent(),
    advantage=GroupRelative(center="leave_one_out", scale="none"),
    loss=Policy(clip=None, aggregate="constant", constant=1.0),
)
