"""SAC's entropy coefficient: it rises while the policy is surer than it should be, and falls while it is less.

    log alpha <- log alpha + 0.01 (0.3 - H),   alpha from 1e-5 to 0.01,   H the mean entropy of an iteration's tokens
    L = - mean over tokens of A log p + alpha H

Soft actor-critic trains the temperature so that the entropy stays near a target; that part is of use for language
models, and stands here in a plain policy gradient. 0.3 nats for a token, the rate and the bounds are proposals. Its
twin critics are those of `td3`. Another fixed form is alpha = c * target / H.

Source: arXiv:1812.05905.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.schedule import Dual

SAC = Recipe(
    name="sac",
    source="arXiv:1812.05905",
    advantage=GroupRelative(),
    loss=Policy(
        clip=None,
        surrogate=Reinforce(),
        entropy=Dual(
            "entropy",
            target=0.3,
            start=0.001,
            at_least=1e-5,
            at_most=0.01,
            rate=0.01,
            holds="at_least",
            kind="logarithmic",
        ),
    ),
)
