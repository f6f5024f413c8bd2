"""VLA-RL: the tokens of a robot action share one ratio, and a reward model scores every step (arXiv:2505.18719).

    r_t = sparse reward + process reward,   A_t: GAE over steps with gamma 0.99, lambda 0.95
    rho = p(action) / p_old(action), the product over the action's tokens
    L = - mean over steps of min(rho A, clip(rho, 0.8, 1.2) A)
    L_critic = mean over steps of 1/2 max((V - R)^2, (V_old + clip(V - V_old, +-0.2) - R)^2)

In the first 5 iterations only the critic is trained (`FreezeModel`). Tasks are drawn in proportion to exp((0.5 -
success rate) / 0.25). The step rewards of a process model are the fact or annotation `process_reward`.

Equations:
    Read: the paper's text without its figures, and the authors' code.

    - 1, ratio of an action: `Ratio("step", "sum", "segment")`.
    - 2, policy loss: `Policy`, clip range 0.2, `aggregate="step_mean"`.
    - 3.4, process reward: `CombineReward(column="process_reward", level="step")`; its model is trained beforehand.
    - 4, task curriculum: `RecentVisits`, `NearTarget(0.0)`, `ProportionalSampler(temperature=0.25)`.
    - C2, advantage: `Gae(level="step", gamma=0.99, lam=0.95, at_truncation="bootstrap")`.
    - C4, value loss: `Value(clip=0.2, level="step")` of the model `critic`.
    - C5, critic warm-up: `FreezeModel("policy", until=6)`.
    - C6, old log-probabilities: computed at sampling here, so that the clip acts in the first epoch too.

Differs:
    - Old log-probs: in its first epoch the code takes the current ones, so that its ratios are 1.
    - Curriculum: the public code draws all tasks uniformly. The paper gives neither the temperature nor the window of
      the success rate: 0.25 and 10 visits here.
    - Process reward: in the public code the model and its call are commented out.
    - Optimizer steps a batch: the paper does not state them; the code's script makes 80 (10 environments of 128 steps,
      16 in a mini-batch). Here a minibatch consists of whole rollouts, so a batch has at most as many minibatches as
      rollouts.
    - Temperature: 1.5 in the paper, 1.0 in the code's script; here it is a setting of the engine.

Needs: rewards of steps; step columns `process_reward`, `value` and `old_value` of the critic, and `next_value` for
truncated rollouts.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.loss import Policy, Ratio, Train, Value
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.schedule import FreezeModel
from agentrl_core.select import ComposedSelector, NearTarget, ProportionalSampler, RecentVisits

VLA_RL = Recipe(
    name="vla_rl",
    source="arXiv:2505.18719",
    select=ComposedSelector(
        track=RecentVisits(10, of="success"), score=NearTarget(0.0), sample=ProportionalSampler(temperature=0.25)
    ),
    reward=(OutcomeScore(), OutcomeScore(level="step"), CombineReward(column="process_reward", level="step")),
    advantage=Gae(level="step", column="step_score", outcome="", gamma=0.99, lam=0.95, at_truncation="bootstrap"),
    loss=(
        Train(Value("token_mean", clip=0.2, level="step"), model="critic"),
        Train(Policy(ratio=Ratio("step", "sum", "segment"), aggregate="step_mean")),
    ),
    hooks=FreezeModel("policy", until=6),
    minibatches=80,
)
