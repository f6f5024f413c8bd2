"""LOOP: leave-one-out policy gradient for long tool use, without the rollouts that teach nothing (arXiv:2502.01600).

    A_i = R_i - mean of the others' R
    L = - (1 / 32) sum_i mean_t min(r A, clip(r, 1 / 1.1, 1.1) A)   over rollouts with |A| >= 0.01

32 is the size of a minibatch and stays it whatever was filtered; so many dropped rollouts come back, those of largest
|A| first, that 8 ranks share them evenly. Old log-probs are recomputed by the trainer. Turns and trajectories have
one ratio with `Ratio("step", "sum", "segment")` and `Ratio("sequence", "sum", "segment")`; the released option with a
spread is `GroupRelative(center="leave_one_out", ddof=0, eps=0.0, scale_at_least=1e-7)`. The public recipe
also stops stragglers, `LOOP.replace(rollout=rollout.EarlyStop())`; its default does not.

Needs: `recomputed_logprob`.

Equations:
    Read: the public code, notes, and the abstract; the paper's text was not read.

    - N1, advantage: `GroupRelative(center="leave_one_out", scale="none")`.
    - C1, filter: `SelectDraws(at_least=0.01, multiple=8, round_up=True)`.
    - C2, token loss: `Policy(clip=Clip(0.1, 0.1, scale="reciprocal"))`.
    - C3, mini-batch: `aggregate="sequence_mean_sum", constant=32.0`, two passes.
    - C4, options: `Ratio("sequence", "sum")` is one; a shift and positive advantages alone are not used.
    - N2, stragglers: an option, `EarlyStop`; uneven groups are compared as they are.

Differs:
    - Clip ranges: the lower bound is 1 / 1.1 in the code and here.
    - Optimizer steps of a pass: 7.5 in the code, before the filter; 8 here.
    - Stop at a KL of 20: left out, the code's default has it.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.weight import SelectDraws

LOOP = Recipe(
    name="loop",
    source="arXiv:2502.01600",
    advantage=GroupRelative(center="leave_one_out", scale="none"),
    weight=SelectDraws(at_least=0.01, multiple=8, round_up=True, denominator="all"),
    loss=Policy(
        clip=Clip(0.1, 0.1, scale="reciprocal"),
        aggregate="sequence_mean_sum",
        constant=32.0,
    ),
    old_logprob="recomputed",
    epochs=2,
    minibatches=8,
)
