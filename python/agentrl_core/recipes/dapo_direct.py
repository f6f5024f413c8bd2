"""DAPO, direct advantage policy optimisation: fit a step's log-ratio to the advantage from a critic.

    A(s, a) = V(s + a) - V(s),   V of the last state: the outcome
    L = mean over steps of 1/2 (sum over the step of log p - log p_old - A / 0.1)^2

The critic is trained by cross-entropy in its own stage (`warm_start`). Its targets are the shares of successful
completions of each partial solution, from at least 4 completions; they are the step column `return` of its batch. Then
the critic is frozen. The old policy is the policy that generated the data; each iteration uses fresh data. Not to be
confused with ByteDance's `dapo`. No public code is known.

Equations:
    Read: the abstract and notes of others; the paper's text was not read.

    - N1, critic: `Value(kind="cross_entropy")` in the stage `warm_start`.
    - N2, advantage of a step: `Gae(level="step", lam=0.0)`; the outcome follows the last step.
    - N3, loss: `Regression` of the log-ratio that is summed over a step.
    - N4, iteration: the reference is the policy that sampled; `warm_start` trains the critic again.

Differs:
    - Coefficient beta: the paper's value is not known; 0.1 here, as the notes propose.
    - Data: in the paper, several actions from each state, sampled offline; here rollouts that begin at the prompt.

Source: arXiv:2412.18279. Needs: the critic's step column `value`, a probability (the sigmoid of the critic's output):
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
