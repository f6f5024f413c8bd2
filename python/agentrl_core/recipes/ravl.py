"""RAVL, applied to agents: value a truncated rollout by the most pessimistic of several critics (arXiv:2402.12527).

    y_t = r_t + 0.99 V_{t+1};   for the last step: r if the episode ended, r + 0.99 min_e V_e if it was cut off
    A_t = y_t - V_t,   L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A)
    L_critic = mean over steps of 1/2 (V - y)^2

The state at which a rollout is cut off is never trained on, only bootstrapped from. An error in its value therefore
spreads to all earlier states. The paper trains Q-functions of continuous actions on imagined rollouts, with SAC. This
recipe uses only the paper's target: imagined rollouts, the diversity of critics and SAC's actor are left out.

Needs: rewards of steps; the step columns `value` and, for rollouts that were cut off, `next_value`, the smallest of the
values of the critic's heads. The code takes the smallest value at every step: to follow it, compute `value` in the same
way.

Equations:
    Read: the authors' code, and notes of others; the paper's text was not read.

    - C1, target: `Gae(lam=0.0, at_truncation="bootstrap")`; values are min_e Q_e - alpha log p of the state.
    - C2, critic loss: `Value`, half the square, summed over the heads if the critic returns several values.
    - C3, diversity: left out: it needs gradients with respect to a continuous action.
    - C4, actor and temperature: left out: SAC's actor is differentiated through a continuous action; here `Policy`
      trains the actor.
    - C5, targets move: left out: the values are columns from before the update, so they do not move during it.
    - C6, data: left out: no model of the environment generates imagined rollouts.

Differs:
    - Optimizer steps: in the source, 1000 steps of 256 rows for each epoch of 50 000 imagined rollouts of 5 steps,
      about one pass in minibatches. Here the rollouts are not imagined, and a batch has 1 optimizer step.
    - Clip: none in SAC; 0.2 in the policy's loss here.
    - Critics: ten networks in the source; here the heads of one model, any number of them.
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
