"""GRPO: compare each rollout with the mean of its group, without a critic (DeepSeekMath, arXiv:2402.03300).

Each task has G independent rollouts, with advantages A_i = (R_i - mean) / (std + 1e-6) over the group. The loss is
clipped:

    L = - sum_t w_t min(r_t A, clip(r_t, 0.8, 1.2) A).

The paper averages over the tokens of a rollout, then over rollouts, and adds 0.04 times the k3 estimate of the KL to a
reference. Most public code now averages over all tokens of the batch and has no reference; so does this recipe. The
paper's form is `GRPO.replace(loss=loss.Policy(aggregate="sequence_mean", kl=loss.KL(0.04)))`.

Equations:
    Read: the paper's sections 4.1 and 4.2.

    - 3, objective: `Policy`, clip range 0.2; the paper's mean over tokens, then rollouts, is an option.
    - 4, estimate of the KL: `KL`, the default estimator; an option.
    - 4.1.2, outcome supervision: `GroupRelative`, std with denominator n - 1, and 1e-6 added to it.
    - 4.1.3, process supervision: an option, `(GroupRelative(column="reward", level="step"),
      Discounted(column="advantage"))`.
    - C1, a group of one: `GroupRelative` returns 0; `singleton="raw"` returns the raw reward, as verl does.

Differs:
    - Aggregation: each rollout has the same weight in the paper, each token here.
    - KL: 0.04 in the paper, none here.
    - Clip range: the paper gives no number; 0.2 here. The paper makes one optimizer step per batch, so its clip never
      acts.
    - Reward model: left out: retraining it between iterations is outside of a recipe whose rewards come from the
      environment.
    - Reference: the paper's iterative form sets it to the policy after each iteration; here it is the model passed to
      `arl.annotate`.
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
