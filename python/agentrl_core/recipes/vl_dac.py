"""VL-DAC: the policy is clipped token by token, the critic judges whole steps of the environment (arXiv:2508.04280).

    delta_t = r_t + 0.99 V_{t+1} - V_t,   A_t = delta_t + 0.99 * 0.95 A_{t+1},   then (A - mean) / std over the batch
    L = - mean over tokens of min(r A, clip(r, 0.9, 1.1) A), and 0.04 k3 to the reference
    L_critic = mean over steps of 1/2 max((V - R)^2, (V_old + clip(V - V_old, +-0.1) - R)^2)

Thoughts and actions of a step share its advantage, so that no coefficient has to mix them. A step that a time limit cut
off has no advantage of its own (and takes part in the comparison with 0). Public code takes a token whose ratio is
above 10 at its clipped term; here a bad one counts as 10 A, which has no gradient either.

Needs: rewards of steps; the critic as step columns `value` and `old_value`, from a head whose gradient stops at the
backbone; the model reference. Four epochs.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import KL, Clip, Policy, Train, Value

VL_DAC = Recipe(
    name="vl_dac",
    source="arXiv:2508.04280",
    advantage=(
        Gae(level="step", gamma=0.99, lam=0.95, column="reward", outcome="", at_truncation="drop"),
        GroupRelative(column="advantage", level="step", group_by="batch"),
    ),
    loss=(
        Train(Value("step_mean", clip=0.1, level="step"), model="critic"),
        Train(Policy(clip=Clip(0.1, 0.1, dual=10.0), kl=KL(0.04))),
    ),
    epochs=4,
)
