"""GDRO for diffusion models: fit the policy offline to the ranking of each group by rewards, rank by rank.

    L = sum over ranks i < k of  - sum over j >= i of Q_i(j) log P_i(j)
    P_i = softmax of 0.1 (log p - log p_ref),   Q_i = softmax of R / 0.05,   both over the answers from rank i on

The first rank alone gives the paper's top-1 form, `ListMatch(direction="forward")`; with two answers and a small
temperature it is DPO. The stabiliser, cloning of the best answer, is left out. (`gdro_rl` is another system.)

Equations:
    Read: a public note on the paper, with its numbers; the paper's text was not read.

    - 5, implicit reward: beta times the log-ratio of an answer (equation 3); a diffusion model has velocity errors
      instead of log-ratios.
    - 3.2, soft target: the softmax of `ListMatch(temperature=0.05)`.
    - 6, top-1 loss: `ListMatch(direction="forward")`, an option.
    - 7, GDRO loss: `ListMatch(direction="ranked")`, the mean over groups of any size.
    - 8 and 9, stabiliser and final loss: left out: it is a velocity error of the best answer, and its weight, 0.5 or
      1, is on the scale of that error.
    - 12, rank loss: the limit of a small temperature.

Differs:
    - Scale beta: 6 or 12 for velocity errors; 0.1 here, a proposal for log-ratios of language models.
    - Discount: the paper's gamma is the weight of the stabiliser, not a discount; there is none here.

Source: GDRO: Group-level Reward Post-training Suitable for Diffusion Models (arXiv:2601.02036). Needs: groups from
any source; the reference model.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import ListMatch

GDRO_DIFFUSION = Recipe(
    name="gdro_diffusion",
    source="arXiv:2601.02036",
    advantage=GroupRelative(scale="none"),
    loss=ListMatch(direction="ranked", beta=0.1, temperature=0.05),
)
