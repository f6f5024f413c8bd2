"""PROPS, applied to trees: sample next from the places that were sampled too rarely (arXiv:2311.08290).

Of 16 rollouts 8 start at the prompt, and the others leave where the tree undersamples the policy
(`UnderSampled`), so that a group is nearer to the policy than as many independent samples. The public code
trains a behaviour policy on control tasks, with a clip of 0.3 and refreshed every 16 steps; this is its rule, not that.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import BudgetedRollout, Group


@dataclass(frozen=True)
class UnderSampled(BudgetedRollout):
    """Forks where the branches lag behind the policy (after PROPS, Corrado and Hanna, arXiv:2311.08290).

    A few samples are no image of the policy: some actions come up more often than they are likely, others less. After
    `initial` branches from the prompt each further one leaves a turn of the tree: from the beginning on, the walk
    follows the turn `a` with the smallest

        n(a) / sum(n)  -  p(a) / sum(p)

    over the turns tried at the same place (`n`: branches that ended behind it, `p`: exp of the log-prob of its tokens,
    as sampled), until nothing was tried behind it. If that turn ended its episode, the branch leaves before it.
    So the branches of a group come closer to the policy without more of what it had too much of.

    PROPS itself changes the behaviour policy of a control task by gradient steps; this is its rule for a tree.

    Args:
        budget: branches of a group in the end. It takes the place of the collector's `group_size`.
        initial: branches that start at the prompt.
        parallel: branches that are added side by side; they count as visits of each other.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.props import UnderSampled
        >>> UnderSampled(budget=16, initial=4).final_group_size(group_size=8)
        16
    """

    parallel: int = option(4, at_least=1)

    async def group(self, group: Group) -> None:
        """Branches from the prompt, then those that leave the tree."""
        await group.run(group.start_many(self.initial))
        while room := self.budget - group.count:
            tree = group.tree
            await group.run(tree.expand(tree.under_sampled(min(self.parallel, room))))


PROPS = Recipe(
    name="props",
    source="arXiv:2311.08290",
    rollout=UnderSampled(budget=16, initial=8),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.3, 0.3)),
)
