"""TD3: two critics, of which the smaller value is believed, and a policy that moves half as often (arXiv:1802.09477).

    y_t = r_t + 0.99 min(V1, V2)_{t+1},   A_t = y_t - min(V1, V2)_t
    L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A),   L_critic = mean over steps of 1/2 sum_k (V_k - y)^2

The policy is trained in every other iteration. Noise on the target's action has no meaning for tokens and is left out;
the paper's actor follows the critic's gradient, which tokens do not have either.

Needs: rewards of steps; the critic answers `value` as `[N, 2]`, and the step column `value` holds the smaller of both.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.schedule import FreezeModel

TD3 = Recipe(
    name="td3",
    source="arXiv:1802.09477",
    advantage=Gae(level="step", column="reward", outcome="", gamma=0.99, lam=0.0),
    loss=(Train(Value("step_mean", level="step"), model="critic"), Policy()),
    hooks=FreezeModel("policy", every=2),
)
