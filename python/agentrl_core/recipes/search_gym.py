"""SearchGym-RL: search agents in a simulated web, simple questions first (arXiv:2601.14615).

Tasks come of a knowledge graph with a corpus that fits it, so that every reward is exact. A first stage has questions
of one hop (column `hops` of the pool); when more than 0.7 of their rollouts succeed in an iteration, those of several
hops are open too. GRPO in both.

The paper has two stages and states neither where they part nor what ends the first; these are proposals.

Equations:
    Read: the abstract and notes of others; the paper's text was not read.

    - S1, reward: the environment's, 1 or 0: `OutcomeScore`.
    - S2, group advantage: `GroupRelative`, std of n - 1.
    - S3, policy loss: `Policy`, mean over the policy's own tokens.
    - S4, stage: `Curriculum("hops", "1", above=0.7)`.

Differs:
    - End of the first stage: a rate that reaches 0.7 in the notes, one above 0.7 here.
    - Optimizer steps, clip range and KL: not stated; 1, 0.2 and none here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.select import ComposedSelector, Curriculum

SEARCH_GYM = Recipe(
    name="search_gym",
    source="arXiv:2601.14615",
    select=ComposedSelector(stage=Curriculum("hops", "1", above=0.7)),
    advantage=GroupRelative(),
    loss=Policy(),
)
