"""GDRO for diffusion models: a group's rewards as a distribution, which the policy's is fitted to, all of it offline.

    P = softmax of 0.1 (log p - log p_ref),   Q = softmax of R / 0.05 over the group,   L = - sum of Q log P

It is the paper's top-1 form; of two answers and a small temperature it is DPO. Its full form (Plackett-Luce), which
ranks all answers, is `ListMatch(direction="ranked")`. Its stabiliser, cloning of the best answer, is not built. beta is
6 to 12 for diffusion models; 0.1 is a proposal for language models. (`gdro_rl` is another system.)

Source: GDRO: Group-level Reward Post-training Suitable for Diffusion Models (arXiv:2601.02036). Needs: groups of any
origin; the reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import ListMatch

GDRO_DIFFUSION = Recipe(
    name="gdro_diffusion",
    source="arXiv:2601.02036",
    advantage=GroupRelative(scale="none"),
    loss=ListMatch(direction="forward", beta=0.1, temperature=0.05),
)
