"""Hyper++, its critic: returns as classes, which are learned more steadily than numbers.

    z_j: 51 bins from 0 to 1;   target: the mass of a Gaussian around R, 0.75 bin widths wide, in each bin
    L_critic = mean over tokens of - sum_j target_j log softmax(logits)_j,   V = sum_j p_j z_j

and PPO's policy loss. The paper's hyperbolic layers and their regularisation are architecture; the categorical head
(HL-Gauss, arXiv:2403.03950) is what helps a language model's critic whose returns are bounded. The number of bins is
that of the answer `value_logits`; `loss.value.expected_value` makes V of it.

Source: Understanding and Improving Hyperbolic Deep Reinforcement Learning (arXiv:2512.14202). Needs: the token column
`value`, and the critic's answer `value_logits`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import Policy, Train, Value

HYPER_PP = Recipe(
    name="hyper_pp",
    source="arXiv:2512.14202",
    advantage=(
        Gae(lam=0.95),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=(Train(Value("token_mean", kind="categorical"), model="critic"), Policy()),
)
