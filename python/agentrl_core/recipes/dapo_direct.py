"""DAPO, direct advantage policy optimisation: fit a step's log-ratio to the advantage from a critic.

    A(s, a) = V(s + a) - V(s),   V of the last state: the outcome
    L = mean over steps of 1/2 (sum over the step of log p - log p_old - A / 0.1)^2

The critic learns in a stage of its own (`warm_start`) from shares of successful completions, at least 4 for each
partial solution: by cross-entropy, on a batch whose step column `return` holds them. Then it is frozen. The old policy
is the one that made the data; an iteration is repeated with fresh data. Not to be confused with ByteDance's `dapo`.
Public code is not known.

Equations:
    Read: the abstract and notes of others; the paper's text was not read.

    - N1, critic: `Value(kind="cross_entropy")` of the stage `warm_start`.
    - N2, advantage of a step: `Gae(level="step", lam=0.0)`; the outcome follows the last step.
    - N3, loss: `Regression` of the sum over a step.
    - N4, iteration: the reference is the policy that sampled; `warm_start` trains the critic again.

Differs:
    - Coefficient beta: the paper's is not known; 0.1 here, as the notes propose.
    - Data: several actions of each state, offline, in the paper; here rollouts, which begin at the prompt.

Source: arXiv:2412.18279. Needs: the model critic, as step column `value`: a probability, the sigmoid of its answer,
`arl.annotate(batch, "value", lambda pack: pack.run(critic, outputs=("value",)).value.sigmoid(), level="step")`.
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
