"""LongCat-Flash-Thinking: bound an asynchronous policy gradient in three ways, and correct the engine's numerics.

    L = - (1 / 8192) mean_i sum_t min(p_trainer / p_engine, 2) J_t
    J_t = min(r A, clip(r, 0.8, 1.28) A), at least 5 A if A < 0,   r = p / p_trainer

p_trainer is the trainer's probability before the first update, p_engine the engine's at sampling. The constant is the
length of the longest answer. There is no KL. The digest does not give the bounds; the values here are proposals. Two
contributions are left out. One is DORA, whose engines generate with several versions of the policy at once, each
answer with one version (`Collector(..., staleness=2)` runs ahead, with one engine that takes each new version). The
other is the fusion of experts of several domains, which merges weights after training.

Equations:
    Read: a digest of the report, and notes by others, which propose the bounds. The report's text was not read.

    - N1, objective: `Policy`, with the third bound only for negative advantages, as the digest explains it.
    - N2, engine weight: `ImportanceWeight`.
    - N3, DORA: left out: it is a schedule of engines, see above.
    - N4, advantage: `GroupRelative`, std of n - 1.
    - N5, fusion of experts: left out: it merges trained models.

Differs:
    - Constant T_max: 48K to 64K tokens in the report, by domain; 8192 here.
    - Bounds: not given in the digest; 0.2, 0.28, 5 and 2 as in the notes.
    - Optimizer steps a batch: not given; 1 here, in which r is 1. The three bounds act from the second step on:
      `LONGCAT_FLASH.replace(minibatches=4)`.

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
