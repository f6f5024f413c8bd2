"""Tree-GRPO: groups whose rollouts share turns (arXiv:2509.21240).

Each prompt has 2 trees that begin as chains, and 3 new branches leave each at random turns: 8 rollouts for the price of
fewer (`rollout.TreeExpansion`). Credit is the sum of two group-relative advantages, in the prompt and in the tree.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import TreeExpansion

TREE_GRPO = Recipe(
    name="tree_grpo",
    source="arXiv:2509.21240",
    rollout=TreeExpansion(trees=2, rounds=1, expansions=3),
    advantage=(
        GroupRelative(singleton="raw", add=True),
        GroupRelative(group_by="group_id,tree", singleton="raw", add=True),
    ),
    loss=Policy(),
)
