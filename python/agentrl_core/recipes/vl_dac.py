"""VL-DAC: the policy is clipped token by token, the critic judges whole steps of the environment (arXiv:2508.04280).

    delta_t = r_t + 0.99 V_{t+1} - V_t,   A_t = delta_t + 0.99 * 0.95 A_{t+1},   then (A - mean) / std over the batch
    L = - mean over steps of the mean over their tokens of min(r A, clip(r, 0.9, 1.1) A), and 0.04 k3 to the reference
    L_critic = mean over steps of 1/2 max((V - R)^2, (V_old + clip(V - V_old, +-0.1) - R)^2)

Thoughts and actions of a step share its advantage, so that no coefficient has to mix them. A step that a time limit cut
off has no advantage of its own (and takes part in the comparison with 0).

Equations:
    Read: the authors' code, and a summary and notes of others; the paper's text was not read.

    - C1, advantage of a step: `Gae(level="step", at_truncation="drop")`.
    - C2, normalised: `GroupRelative` over the batch, std of n - 1 and 1e-8 added to it.
    - C3, loss of a token: `Clip(0.1, 0.1, dual=10.0)`.
    - C4, divergence: `KL(0.04)`, k3.
    - C5, value loss: `Value(clip=0.1, level="step")` of the model `critic`.
    - C6, loss of a step: `aggregate="step_mean"`. The first two rollouts, which train the value alone, are left to the
      user: `recipe.updates(batch)` names the model of each update.

Differs:
    - Guard of the ratio: one token above 10 makes the code take the clipped term of all tokens of its step; here a bad
      one counts as 10 A, which has no gradient either, and the others of its step are as usual.
    - Weight of the value loss: added to the policy's in the code; the critic is a model with its own optimizer here.
    - Steps that go on behind the batch: bootstrapped in the code; here a rollout ends or was cut off.

Needs: rewards of steps; the critic as step columns `value` and `old_value`, from a head whose gradient stops at the
backbone; the model reference. Four epochs of 64 minibatches, of two steps each in rollouts of 128.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import KL, Clip, Policy, Train, Value

VL_DAC = Recipe(
    name="vl_dac",
    source="arXiv:2508.04280",
    advantage=(
        Gae(level="step", gamma=0.99, lam=0.95, column="reward", outcome="", at_truncation="drop"),
        GroupRelative(column="advantage", level="step", group_by="batch", eps=1e-8),
    ),
    loss=(
        Train(Value("step_mean", clip=0.1, level="step"), model="critic"),
        Train(Policy("step_mean", clip=Clip(0.1, 0.1, dual=10.0), kl=KL(0.04))),
    ),
    epochs=4,
    minibatches=64,
)
