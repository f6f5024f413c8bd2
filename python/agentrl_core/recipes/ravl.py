"""RAVL, applied to agents: value a truncated rollout by the most pessimistic of several critics (arXiv:2402.12527).

    y_t = r_t + 0.99 V_{t+1};   of the last step: r where the episode ended, r + 0.99 min_e V_e where it was cut off
    A_t = y_t - V_t,   L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A),   L_critic = mean over steps of
    1/2 (V - y)^2

The state at which a rollout is cut off is never trained on and only ever bootstrapped from, so what is wrong there
spreads to all before it. The paper trains Q-functions of continuous actions on imagined rollouts, with SAC. Its target
alone is here: imagined rollouts, the diversity of critics and SAC's actor are left out.

Needs: rewards of steps; step columns `value` and, where a rollout was cut off, `next_value`, the smallest of the values
of the critic's heads. The code takes the smallest for every step: give it as `value` too.

Equations:
    Read: the authors' code, and notes of others; the paper's text was not read.

    - C1, target: `Gae(lam=0.0, at_truncation="bootstrap")`; values are min_e Q_e - alpha log p of the state.
    - C2, critic loss: `Value`, half the square, summed over the heads of a critic that returns several values.
    - C3, diversity: left out: it needs gradients by a continuous action.
    - C4, actor and temperature: left out: the actor of SAC is differentiated through a continuous action; here
      `Policy`.
    - C5, targets move: left out: the values are columns from before the update, so that they do not move within it.
    - C6, data: left out: no model of the environment imagines rollouts.

Differs:
    - Optimizer steps: 1000 of 256 rows for each epoch of 50 000 imagined rollouts of 5 steps in the source, about one
      pass in minibatches; the rollouts here are not imagined, and a batch has 1.
    - Clip: none in SAC; 0.2 of the policy's loss here.
    - Critics: ten networks in the source; heads of one model here, as many as it has.
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
