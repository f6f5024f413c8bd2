"""PPO: estimate the advantage of each token with a critic, and clip the ratio (arXiv:1707.06347).

    A_t = sum_k lambda^k delta_{t+k},  delta_t = r_t + V_{t+1} - V_t,   then (A - mean) / std over all tokens
    L_policy = - mean_t min(r_t A_t, clip(r_t, 0.8, 1.2) A_t)
    L_critic = mean_t 1/2 max((V - R_t)^2, (V_old + clip(V - V_old, +-0.2) - R_t)^2),   R_t = A_t + V_old

Lambda is 0.95, and there is no discount. R uses A before it is normalised, and the score is the reward of the last
token. Each batch is used in 4 epochs of one optimizer step; the clip acts from the second epoch on. The old values come
from the critic before its first step: call `arl.annotate(batch, "value", critic)`, and the same for `old_value`, before
`recipe.credit`.

Equations:
    Read: OpenAI's PPO for language models (lm-human-preferences), verl's code, and the account of PPO in
    arXiv:2402.03300; the PPO paper itself was not read.

    - 1, clipped objective: `Policy`, clip range 0.2, mean over tokens.
    - 2, GAE: `Gae`, at the level of tokens.
    - 3, return: `Gae`, before the whitening.
    - 4, KL in the reward: `Gae(kl_coefficient=...)`, an option.
    - C1, value loss: `Value(clip=0.2)`; without a clip, as in the PPO paper, `Value("token_mean")`.
    - C2, masked tokens: `Gae` skips untrained tokens.
    - C3, whitening: the last `GroupRelative`, variance over n - 1 as in verl; over n in OpenAI's code, `ddof=0`.
    - C4, dual clip: an option, `Clip(0.2, 0.2, dual=3.0)`.

Differs:
    - KL: 0.2 in the reward of OpenAI's code, 0.001 in verl's examples; none here, because it needs a reference.
    - Whitening of the rewards: off here; OpenAI's code first divides them by their std.
    - Value weight: 0.1 in OpenAI's code, where policy and critic share a network; here the critic is a separate model
      with its own optimizer step.
    - verl: lambda 1, value clip 0.5, and a dual clip of 3 by default.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import Policy, Train, Value

PPO = Recipe(
    name="ppo",
    source="arXiv:1707.06347",
    advantage=(
        Gae(gamma=1.0, lam=0.95),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=(Train(Value("token_mean", clip=0.2), model="critic"), Policy()),
    epochs=4,
)
