"""RAVL, applied to agents: value a truncated rollout by the most pessimistic of several critics.

    y_t = r_t + 0.99 V_{t+1};   of the last step: r where the episode ended, r + 0.99 min_e V_e where it was cut off
    A_t = y_t - V_t,   L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A),   L_critic = mean over steps of
    1/2 (V - y)^2

The state at which a rollout is cut off is never trained on and only ever bootstrapped from, so what is wrong there
spreads to all before it. The paper trains Q-functions on imagined rollouts; its idea alone is here.

Source: arXiv:2402.12527. Needs: rewards of steps; step columns `value` and, where a rollout was cut off, `next_value`,
the smallest of an ensemble's values.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.loss import Policy, Train, Value

RAVL = Recipe(
    name="ravl",
    source="arXiv:2402.12527",
    advantage=Gae(level="step", column="reward", outcome="", gamma=0.99, lam=0.0, at_truncation="bootstrap"),
    loss=(Train(Value("step_mean", level="step"), model="critic"), Policy()),
)
