"""ROVER: regress the log-ratio of a token on the value of the uniform policy (arXiv:2509.24981).

    Q_t = log p - log p_old,   y_t = R - mean R + (u_{t+1} - u_old_{t+1}),   L = mean over tokens of (Q_t - y_t)^2

u is the mean log-prob over the vocabulary, which is the value of the next state under the uniform policy. It is 0 after
the last token, and y is not differentiated. There is no importance ratio, no clip and no reference. The released math
script divides rewards by their std: `advantage.GroupRelative()`.

Needs: `old_mean_logprob` from `arl.annotate` before the first update, and the model output `mean_logprob`.

Equations:
    Read: the paper's section 3, its algorithm 1 and appendices B, C and E.1; the public code, and notes.

    - T3.1, theorem: left out: a statement about a uniform policy, whose value C2 estimates.
    - C1, Q of a token: `Regression(level="token")`, of the log-ratio.
    - C2, value of the next state: `Regression(next_value=1.0)`, of the mean log-prob over the vocabulary.
    - C3, target and loss: `Regression("token_mean")`.
    - C4, reward of Countdown: `GroupRelative(scale="none")`; a group of one gets 0 here, and its reward in the code.
    - C5, reward of the math script: an option, `GroupRelative()`.
    - C6, reward by the estimator named rover: left out: the scripts do not use it.
    - C7, options: left out: clip and response level are off by default in the code.

Differs:
    - Reward: the repository has three versions; here the centred one, equation 4 of the paper.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Regression

ROVER = Recipe(
    name="rover",
    source="arXiv:2509.24981",
    advantage=GroupRelative(scale="none"),
    loss=Regression("token_mean", level="token", next_value=1.0),
    minibatches=4,
)
