"""LOOP: leave-one-out policy gradient for long tool use, without uninformative rollouts (arXiv:2502.01600).

    A_i = R_i - mean R of the other rollouts
    L = - mean over rollouts of mean over the tokens of the policy of min(r A, A + 0.1 |A|)

Rollouts with |A| < 0.01 are left out of the gradient, but count in the mean. There is no value network, and advantages
are not divided by a spread. The trainer recomputes old log-probs. Late rollouts are stopped once 90% of all rollouts
and 4 of the 6 rollouts of each task have ended. For one ratio per turn or per trajectory use
`Ratio("step", "sum", "segment")` or `Ratio("sequence", "sum", "segment")`. The variant with a spread is
`GroupRelative(center="leave_one_out", ddof=0, eps=0.0, scale_at_least=1e-7)`.

The public code differs in three options. Its lower bound is `Clip(0.1, 0.1, scale="reciprocal")`. It divides by 32, for
any size of a minibatch: `aggregate="sequence_mean_sum", constant=32.0`. It takes dropped rollouts back, those with the
largest |A| first, until 8 ranks can share the rollouts evenly:
`SelectDraws(at_least=0.01, multiple=8, round_up=True, denominator="all")`.

Needs: `recomputed_logprob`.

Equations:
    Read: the paper (sections 3 and 4, appendices B to D), the public code, and notes.

    - 3, advantage: `GroupRelative(center="leave_one_out", scale="none")`.
    - 10, objective: `Policy("sequence_mean", clip=Clip(0.1, 0.1))`, the mean over tokens, then over rollouts.
    - D, filter: `SelectDraws(at_least=0.01, denominator="all")`.
    - C1, filter of the code: an option, see above.
    - C2, token loss of the code: an option, see above.
    - C3, mini-batch of the code: an option, see above; two passes.
    - C4, options: `Ratio("sequence", "sum")` is one; the recipe uses neither a shift nor positive advantages
      only.
    - N2, stragglers: `EarlyStop(of_all=0.9, of_group=2 / 3)`; groups of unequal size are compared as they are.

Differs:
    - Optimizer steps of a pass: 7.5 in the code, before the filter; 8 here.
    - Stop at a KL of 20: left out; the code has it by default.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import EarlyStop
from agentrl_core.weight import SelectDraws

LOOP = Recipe(
    name="loop",
    source="arXiv:2502.01600",
    rollout=EarlyStop(of_group=2 / 3),
    advantage=GroupRelative(center="leave_one_out", scale="none"),
    weight=SelectDraws(at_least=0.01, denominator="all"),
    loss=Policy("sequence_mean", clip=Clip(0.1, 0.1)),
    old_logprob="recomputed",
    epochs=2,
    minibatches=8,
)
