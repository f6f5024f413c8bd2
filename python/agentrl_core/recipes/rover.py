"""ROVER: regress the log-ratio of a token on the value of a policy that draws uniformly (arXiv:2509.24981).

    Q_t = log p - log p_old,   y_t = R - mean R + (u_{t+1} - u_old_{t+1}),   L = mean over tokens of (Q_t - y_t)^2

u is the mean log-prob of the vocabulary, the successor's value under the uniform policy; it is 0 after the last token,
and y is not differentiated. Neither ratio nor clip nor reference. The released math script divides rewards by their
std: `advantage.GroupRelative()`.

Needs: `old_mean_logprob` from `arl.annotate` before the first update, and the model's answer `mean_logprob`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Regression

ROVER = Recipe(
    name="rover",
    source="arXiv:2509.24981",
    advantage=GroupRelative(scale="none"),
    loss=Regression("token_mean", level="token", next_value=1.0),
)
