"""SearchGym-RL: train search agents in a simulated web, with simple questions first (arXiv:2601.14615).

Tasks come from a knowledge graph with a matching corpus, so every reward is exact. The first stage has one-hop
questions (column `hops` of the pool). When more than 0.7 of their rollouts succeed in an iteration, questions of
several hops are opened too. Both stages use GRPO.

The paper has two stages, but states neither the boundary between them nor the end of the first; the values here are
proposals.

Equations:
    Read: the abstract and notes of others; the paper's text was not read.

    - S1, reward: 1 or 0, from the environment: `OutcomeScore`.
    - S2, group advantage: `GroupRelative`; its std divides by n - 1.
    - S3, policy loss: `Policy`, with a mean over the policy's own tokens.
    - S4, stage: `Curriculum("hops", (1,), above=0.7)`.

Differs:
    - End of the first stage: at a success rate of at least 0.7 in the notes, above 0.7 here.
    - Optimizer steps, clip range and KL: not stated; 1, 0.2 and none here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.select import ComposedSelector, Curriculum

SEARCH_GYM = Recipe(
    name="search_gym",
    source="arXiv:2601.14615",
    select=ComposedSelector(stage=Curriculum("hops", (1,), above=0.7)),
    advantage=GroupRelative(),
    loss=Policy(),
)
