"""AceReason-Nemotron: mathematics first, code later, and exactly one optimizer step for each batch (arXiv:2505.16400).

    A = (R - mean) / std of the group,   L = - mean over tokens of r A, at r = 1

With one step there is nothing to clip and no divergence to pay for. Tasks of code open after 500 iterations, and none
of mathematics follow; tasks that more than 6 of 16 attempts solve leave the pool. An answer that was cut off has no
score: neither is it trained nor does it vote. The lengths of answers grow stage by stage (8, 16, 24, 32 thousand
tokens), which is not in the recipe: give the collector `context_tokens=Schedule(...)`, which limits prompt and answer
together. When a stage ends, and what becomes of cut answers, is not given.

Needs: the pool's column `domain`, of `math` and `code`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.reward import OutcomeScore, Unscored
from agentrl_core.select import ComposedSelector, Curriculum, PoolFilter

ACE_REASON = Recipe(
    name="ace_reason",
    source="arXiv:2505.16400",
    select=ComposedSelector(
        stage=Curriculum("domain", "math,code", above=None, iterations=500, earlier=0.0),
        pool=PoolFilter(at_most=6 / 16, attempts=16),
    ),
    reward=(OutcomeScore(), Unscored(flags="truncated")),
    advantage=GroupRelative(),
    loss=Policy(),
)
