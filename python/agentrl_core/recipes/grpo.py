"""GRPO: compare each rollout with the mean of its group, without a critic (DeepSeekMath, arXiv:2402.03300).

G independent rollouts per task; A_i = (R_i - mean) / (std + 1e-6) over the group; the clipped loss

    L = - sum_t w_t min(r_t A, clip(r_t, 0.8, 1.2) A).

The paper averages over the tokens of a rollout and then over rollouts, and adds 0.04 k3 to a reference. Public code now
mostly averages over all tokens of the batch and leaves the reference out; so does this recipe. The paper's form is
`GRPO.replace(loss=loss.Policy(aggregate="sequence_mean", kl=loss.KL(0.04)))`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import Independent

GRPO = Recipe(
    name="grpo",
    source="arXiv:2402.03300",
    rollout=Independent(),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.2), aggregate="token_mean"),
)
