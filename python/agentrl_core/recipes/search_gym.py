"""SearchGym-RL: search agents in a simulated web, simple questions first (arXiv:2601.14615).

Tasks come of a knowledge graph with a corpus that fits it, so that every reward is exact. A first stage has questions
of one hop (column `hops` of the pool); when more than 0.7 of their rollouts succeed, as a mean that is half of the
iterations before, those of several hops are open too. GRPO in both.

The paper has two stages and states neither where they part nor what ends the first; these are proposals.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.select import ComposedSelector, Curriculum

SEARCH_GYM = Recipe(
    name="search_gym",
    source="arXiv:2601.14615",
    select=ComposedSelector(stage=Curriculum("hops", "1", above=0.7, smoothing=0.5)),
    advantage=GroupRelative(),
    loss=Policy(),
)
