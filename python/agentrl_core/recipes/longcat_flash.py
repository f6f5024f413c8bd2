"""LongCat-Flash-Thinking: asynchronous policy gradient with three bounds and a correction of the engine's numerics.

    L = - (1 / 8192) mean_i sum_t min(p_trainer / p_engine, 2) J_t
    J_t = min(r A, clip(r, 0.8, 1.28) A), at least 5 A if A < 0,   r = p / p_trainer

p_trainer is the trainer's probability before the first update, p_engine the engine's at sampling.
The constant is the longest answer; no KL. The bounds are not given: these are ours. Each answer comes from one version
of the policy, which is the collection's to see to; so are the advantages' groups, here GRPO's.

Source: LongCat-Flash-Thinking Technical Report, arXiv:2509.18883. Needs: `recomputed_logprob`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.weight import ImportanceWeight

LONGCAT_FLASH = Recipe(
    name="longcat_flash",
    source="arXiv:2509.18883",
    advantage=GroupRelative(),
    weight=ImportanceWeight(),
    loss=Policy(clip=Clip(0.2, 0.28, dual=5.0), aggregate="constant", constant=8192.0),
    old_logprob="recomputed",
)
