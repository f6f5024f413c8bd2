"""VL-DAC: clip the policy token by token, and train the critic on whole steps of the environment (arXiv:2508.04280).

    delta_t = r_t + 0.99 V_{t+1} - V_t,   A_t = delta_t + 0.99 * 0.95 A_{t+1},   then (A - mean) / std over the batch
    L = - mean over steps of the mean over their tokens of min(r A, clip(r, 0.9, 1.1) A), plus 0.05 k3 to the old policy
    L_critic = mean over steps of 1/2 (V - R)^2

Thoughts and actions of a step share its advantage, so no coefficient is needed to mix them. In the first two
iterations only the critic is trained (`FreezeModel`). A step that a time limit cut off has no advantage of its own;
it enters the normalisation with 0.

Equations:
    Read: the paper's text without its figures, and the authors' code.

    - 3, policy loss: `Policy("step_mean")`; the clip range is from the code, the paper gives none.
    - 4, value head: the model `critic`, whose gradient stops at the backbone.
    - 4.2, value loss: `Value(level="step")`, half the square. The code clips it: `Value(clip=0.1)`.
    - 5, KL to the old policy: `drift=KL(0.05)`, k3 as in the code. The code has the KL to the frozen base model, with
      0.04: `Policy(kl=KL(0.04))`.
    - 6, objective: the sum of both losses.
    - C1, advantage of a step: `Gae(level="step", at_truncation="drop")`; the paper only gives GAE.
    - C2, normalised: `GroupRelative` over the batch, std with divisor n - 1, plus 1e-8; the paper does not state it.
    - C3, guard of the ratio: left out, the paper has none; `Clip(0.1, 0.1, dual=10.0)` is close to the code, which
      takes the clipped term for all tokens of a step that has a ratio above 10.
    - T6, warm-up: `FreezeModel("policy", until=3)`.

Differs:
    - KL: 0.05 to the old policy, as `drift`; none to a reference.
    - Weight of the value loss: 0.15 in the paper's sum; here the critic is a model with its own optimizer.
    - Optimizer steps: the paper accumulates 128 steps of the environment in two epochs and does not give the length
      of a rollout; two minibatches here, for rollouts of 256 as in the code's MiniWorld.
    - Steps that go on behind the batch: bootstrapped in the code; here a rollout has ended or was cut off.

Needs: rewards of steps; the critic's values as step column `value`, from a head whose gradient stops at the backbone.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import KL, Clip, Policy, Train, Value
from agentrl_core.schedule import FreezeModel

VL_DAC = Recipe(
    name="vl_dac",
    source="arXiv:2508.04280",
    advantage=(
        Gae(level="step", gamma=0.99, lam=0.95, column="reward", outcome="", at_truncation="drop"),
        GroupRelative(column="advantage", level="step", group_by="batch", eps=1e-8),
    ),
    loss=(
        Train(Value("step_mean", level="step"), model="critic"),
        Train(Policy("step_mean", clip=Clip(0.1, 0.1), drift=KL(0.05))),
    ),
    hooks=FreezeModel("policy", until=3),
    epochs=2,
    minibatches=2,
)
