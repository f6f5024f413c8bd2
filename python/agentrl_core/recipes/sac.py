"""SAC's temperature: adapt the entropy coefficient to hold the policy's entropy at a target (arXiv:1812.05905).

    log alpha <- log alpha + 10 alpha (0.3 - H),   alpha from 1e-5 to 0.01,   H the mean entropy of the tokens
    L = - mean over tokens of A log p + alpha H

Only the temperature of soft actor-critic is here, in a policy gradient without a critic. The twin critics and the actor
that follows them are left out: they need a value for each action of the vocabulary, or gradients through the action.
`td3` has two token-level critics.

Equations:
    Read: the authors' code, and a port of the temperature to language models; the paper's text was not read.

    - 5, critic loss: left out: there is no critic of actions.
    - C1, soft target: left out: it is the target of SAC's critics.
    - C2, actor loss: left out: SAC's actor follows the critics; here the policy follows group-relative advantages.
    - C3, temperature: `Dual(kind="logarithmic", holds="at_least")`.
    - C4, target critics: left out: there are no critics.
    - N1, temperature of a language model: the same `Dual` as `Policy.entropy`, by the mean entropy of the tokens.
    - N2, fixed form: left out: it has no state to train, which is the paper's addition.

Differs:
    - Optimizer of alpha: Adam at 3e-4 in the code, plain steps of 10 here; at alpha = 0.001 they move log alpha by 0.01
      per nat.
    - Start of alpha: 1 in the code; 0.001 here, for rewards of about 1 per whole answer.
    - Bounds of alpha: none in the code; an upper one in the port; 1e-5 and 0.01 here.
    - Target of the entropy: minus the number of action dimensions in the code; 0.3 nats per token here, our proposal.
    - Entropy: minus log p of the sampled action in the code; the exact entropy of a token in the port and here.
    - Discount: 0.99 in the code; none here, since an answer has one reward.
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
            rate=10.0,
            holds="at_least",
            kind="logarithmic",
        ),
    ),
)
