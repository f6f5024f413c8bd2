"""DAPO, direct advantage policy optimisation: fit a step's log-ratio to the advantage from a critic.

    A(s, a) = V(s + a) - V(s),   V of the last state: the outcome
    L = mean over steps of 1/2 (sum over the step of log p - log p_old - A / 0.1)^2

The critic learns in a stage of its own (`warm_start`) from shares of successful completions, at least 4 for each
partial solution: by cross-entropy, on a batch whose step column `return` holds them. Then it is frozen. The old policy
is the one that made the data; an iteration is repeated with fresh data. Not to be confused with ByteDance's `dapo`.
beta is not given. Public code is not known.

Source: arXiv:2412.18279. Needs: the model critic, as step column `value`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.loss import Regression, Train, Value

DAPO_DIRECT = Recipe(
    name="dapo_direct",
    source="arXiv:2412.18279",
    advantage=Gae(level="step", lam=0.0),
    loss=(
        Train(Regression("step_mean", level="step", beta=0.1, residual="log_ratio", coefficient=0.5)),
        Train(Value("step_mean", kind="cross_entropy", level="step"), model="critic", stage="warm_start"),
    ),
)
