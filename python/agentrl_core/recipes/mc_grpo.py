"""MC-GRPO: use the median as baseline, which is safer than the mean in small groups (arXiv:2601.22582).

    A = (R - m) / (MAD + 0.001),   m = median R, MAD = median |R - m|, for an even number the lower middle value
    L = mean_i mean_t [ - min(r A, clip(r, 0.8, 1.2) A) + 0.04 k3(p, p_ref) ] without the draw that is the median

So G + 1 rollouts cost the gradient computation of only G. If more than half of the rewards are equal, MAD is 0 and A is
a thousand times R - m. The public code does the same and relies on gradient clipping; `scale_at_least=1.0` sets a lower
bound for the divisor. Each batch is trained twice.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, median baseline: `GroupRelative(center="median", median="lower")`.
    - C2, scale: `GroupRelative(scale="mad", eps=1e-3)`.
    - C3, drop: `SelectDraws(kind="pivot")`; of equal draws the first is dropped.
    - C4, rescaling of the GSM8K trainer: an option, `weight.SignalRescale(kind="rows", column="advantage",
      group_by="group_id")` before `SelectDraws`.
    - C5, loss: `Policy(kl=KL(0.04), aggregate="sequence_mean")`, clip range 0.2, two passes over a batch.

Differs:
    - Dropped draw of equal ones: in the code the one whose index torch's median returns, here the first.

Needs: the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.weight import SelectDraws

MC_GRPO = Recipe(
    name="mc_grpo",
    source="arXiv:2601.22582",
    advantage=GroupRelative(center="median", median="lower", scale="mad", eps=1e-3),
    weight=SelectDraws(kind="pivot"),
    loss=Policy(kl=KL(0.04), aggregate="sequence_mean"),
    epochs=2,
)
