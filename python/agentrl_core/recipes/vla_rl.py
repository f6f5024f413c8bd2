"""VLA-RL: actions of robots are several tokens with one ratio, and a reward model pays every step (arXiv:2505.18719).

    r_t = sparse reward + process reward,   A_t: GAE over steps with gamma 0.99, lambda 0.95
    rho = p(action) / p_old(action), the product over the action's tokens
    L = - mean of min(rho A, clip(rho, 0.8, 1.2) A)
    L_critic = mean over steps of 1/2 max((V - R)^2, (V_old + clip(V - V_old, +-0.2) - R)^2)

The critic is trained alone for the first 10 iterations (`FreezeModel`; how long is not given), and an iteration's
updates end where the policy has moved by more than 0.02 (k3; the limit is not given). An action counts as the tokens
that it has, which are as many in all. The paper draws tasks in proportion to exp((0.5 - success rate) / tau), which its
public code does not have and this does not either. The step rewards of a process model are the fact or annotation
`process_reward`.

Needs: rewards of steps; step columns `process_reward`, `value`, and `old_value` of the critic.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.loss import Policy, Ratio, Train, Value
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.schedule import Above, FreezeModel, StopTraining

VLA_RL = Recipe(
    name="vla_rl",
    source="arXiv:2505.18719",
    reward=(OutcomeScore(), OutcomeScore(level="step"), CombineReward(column="process_reward", level="step")),
    advantage=Gae(level="step", column="step_score", outcome="", gamma=0.99, lam=0.95),
    loss=(
        Train(Value("token_mean", clip=0.2), model="critic"),
        Train(Policy(ratio=Ratio("step", "sum", "segment"))),
    ),
    hooks=(FreezeModel("policy", until=11), StopTraining(when=Above("approximate_kl", 0.02), unit="steps")),
)
