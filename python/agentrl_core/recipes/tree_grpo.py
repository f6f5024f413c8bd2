"""Tree-GRPO: grow a group as trees that branch at random turns; compare within group and tree (arXiv:2509.21240).

Each prompt has 2 trees that begin as chains, and 2 new branches leave each tree at random turns. The 6 rollouts cost
less than 6 independent ones, because branches share turns (`TreeExpansion`). Credit is the sum of two group-relative
advantages, one over the rollouts of the prompt and one over those of the tree. The loss has 0.001 of the KL to a
reference.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, inter-tree advantage: the first `GroupRelative`; in the code a group of one keeps its reward,
      `singleton="raw"`.
    - C2, intra-tree advantage of C1: an option, `GroupRelative(column="advantage", group_by="group_id,tree",
      singleton="raw")` as the second one. The code normalises the result of C1 again, so the outer level cancels.
    - A1, both levels: the sum of two `GroupRelative`.
    - C3, tree: `TreeExpansion`.
    - C4, loss: `Policy(kl=KL(0.001))`, clip range 0.2.

Differs:
    - Levels: the abstract has both side by side, as here; in the code only the inner one is left.
    - Group of one: it keeps its value in the code; here it gets 0, because the mean of one value is the value itself.
    - Format rewards: left out: they belong to the environment.

Needs: the model reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import KL, Policy
from agentrl_core.rollout import Branch, Group, Position, Rollout


@dataclass(frozen=True)
class TreeExpansion(Rollout):
    """Start each tree with one rollout, and fork new branches at random turns (Tree-GRPO, arXiv:2509.21240).

    `trees` branches run from the prompt to their ends. In each of `rounds` rounds, `expansions` nodes of each tree are
    drawn with equal probability, none twice. A new branch leaves after each drawn node and runs to its end. A node is
    the prompt, or a complete turn, with its observation, that another turn follows. So a group has
    `trees * (rounds * expansions + 1)` branches, or fewer if a tree has fewer nodes than are to be drawn. The key
    `tree` is the tree of each branch.

    Args:
        trees: M, number of trees of a group.
        rounds: L, number of rounds of expansion.
        expansions: N, number of expansions of each tree in a round.

    Example:
        >>> from agentrl_core.recipes.tree_grpo import TreeExpansion
        >>> TreeExpansion(trees=2, rounds=1, expansions=3).final_group_size(group_size=4)
        8
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"tree": ExtraColumn("trajectory", "key")}

    trees: int = option(2, at_least=1)
    rounds: int = option(1, at_least=0)
    expansions: int = option(3, at_least=1)

    def final_group_size(self, group_size: int) -> int:
        """Return `trees * (rounds * expansions + 1)`; `group_size` is not used."""
        del group_size
        return self.trees * (self.rounds * self.expansions + 1)

    async def group(self, group: Group) -> None:
        """Run the first rollout of each tree, then the rounds of expansion."""
        trees = [[group.start(facts={"tree": str(number)})] for number in range(self.trees)]
        await group.run([branch for tree in trees for branch in tree])
        for number in range(self.rounds):
            grown = [self._expanded(group, tree, f"{number}.{place}") for place, tree in enumerate(trees)]
            await group.run([branch for branches in grown for branch in branches])
            trees = [[*tree, *branches] for tree, branches in zip(trees, grown, strict=True)]

    def _expanded(self, group: Group, tree: list[Branch], name: str) -> list[Branch]:
        """Fork up to `expansions` new branches of one tree at random turns, and return them."""
        nodes = [node for branch in tree for node in _nodes(branch)]
        by_chance = sorted(range(len(nodes)), key=lambda row: group.uniform("node", name, row))
        chosen = [nodes[row] for row in sorted(by_chance[: self.expansions])]
        return [branch.fork(place) for branch, place in chosen]


def _nodes(branch: Branch) -> list[tuple[Branch, Position]]:
    """Return the positions at which to fork a branch: before each of its own turns, except the first of a fork."""
    inherited = 0 if branch.parent is None else branch.key[-2]
    own_turns = [turn for turn in branch.turns if turn.begin.tokens >= inherited]
    return [(branch, turn.begin) for turn in own_turns[0 if branch.parent is None else 1 :]]


TREE_GRPO = Recipe(
    name="tree_grpo",
    source="arXiv:2509.21240",
    rollout=TreeExpansion(trees=2, rounds=1, expansions=2),
    advantage=(
        GroupRelative(add=True),
        GroupRelative(group_by="group_id,tree", add=True),
    ),
    loss=Policy(kl=KL(0.001)),
    minibatches=8,
)
