"""Hyper++, its critic: predict returns as classes, which are learned more steadily than numbers.

    z_j: the centres of 51 bins from -10 to 10;   target_j: mass in bin j of a Gaussian around R, 0.75 bin widths wide
    L_critic = mean over tokens of - sum_j target_j log softmax(logits)_j,   V = sum_j p_j z_j
    L = PPO's policy loss - 0.01 H,   A by GAE with gamma 0.999 and lambda 0.95, normalised; 2 epochs of 8 mini-batches

The hyperbolic layers with normalised and scaled features are left out, because they are layers of the user's model. The
categorical critic (HL-Gauss, arXiv:2403.03950) does not need them. The number of bins is the size of the model output
`value_logits`; `loss.value.expected_value` computes V from it. For returns from 0 to 1 use `Value(kind="categorical")`.

Source: Understanding and Improving Hyperbolic Deep Reinforcement Learning (arXiv:2512.14202). Needs: the token column
`value`, and the critic's output `value_logits` with 51 bins.

Equations:
    Read: the authors' code, and a summary and notes of others; the paper's text was not read.

    - C1, embedding: left out: a layer of the model.
    - C2, map to the hyperboloid: left out: the same.
    - C3, score of an output: left out: the same.
    - C4, target over bins: `Value(kind="categorical")`, whose `low` and `high` are the centres of the outer bins.
    - C5, value and its loss: the same `Value`, and `expected_value`.
    - C6, advantage and return: `Gae`; an episode that reaches a time limit counts as ended.
    - C7, policy loss: `GroupRelative` over the tokens of the batch, then `Policy`.
    - C8, loss: `Policy(entropy=0.01)`.

Differs:
    - Normalisation of advantages: over each mini-batch in the code, over the batch here.
    - Weight of the critic's loss: 0.5 relative to the policy loss in the code; here the critic has its own optimizer.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import Policy, Train, Value

_OUTER = 10.0 * (1.0 - 1.0 / 51.0)
"""Centre of the last of 51 bins."""

HYPER_PP = Recipe(
    name="hyper_pp",
    source="arXiv:2512.14202",
    advantage=(
        Gae(gamma=0.999, lam=0.95),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=1e-8),
    ),
    loss=(
        Train(Value("token_mean", kind="categorical", low=-_OUTER, high=_OUTER), model="critic"),
        Policy(entropy=0.01),
    ),
    epochs=2,
    minibatches=8,
)
