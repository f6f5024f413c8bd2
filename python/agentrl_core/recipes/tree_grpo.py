"""Tree-GRPO: grow groups as trees that branch after random turns, and compare within trees (arXiv:2509.21240).

Each prompt has 2 trees that begin as chains, and 2 new branches leave each at random turns: 6 rollouts for the price of
fewer (`TreeExpansion`). Credit is the sum of two group-relative advantages, in the prompt and in the tree; the loss has
0.001 of the KL to a reference.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, inter-tree advantage: the first `GroupRelative`; the code leaves a group of one as it is, `singleton="raw"`.
    - C2, intra-tree advantage of C1: an option, `GroupRelative(column="advantage", group_by="group_id,tree",
      singleton="raw")` as the second one: the code compares twice, so that the outer level drops out.
    - A1, both levels: the sum of two `GroupRelative`.
    - C3, tree: `TreeExpansion`.
    - C4, loss: `Policy(kl=KL(0.001))`, clip range 0.2.

Differs:
    - Levels: the abstract has both side by side, as here; in the code only the inner one is left.
    - Group of one: kept as it is in the code; the mean of one is its own value, so that it has 0 here.
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
    """Some trees that begin as chains and are expanded at random turns (Tree-GRPO, arXiv:2509.21240).

    `trees` branches run from the prompt to their end. Then, `rounds` times, `expansions` of the nodes of each tree are
    drawn, all with the same chance and none twice in a round, and a new branch leaves behind each and runs to its end.
    A node is a whole turn, with its answer, that another one follows; the prompt is the first node of each tree. So a
    group has `trees * (rounds * expansions + 1)` branches, or fewer where a tree has fewer nodes than are drawn. The
    key `tree` is the tree of each branch.

    Args:
        trees: of a group, M.
        rounds: of expansion, L.
        expansions: of each tree in a round, N.

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
        """`trees * (rounds * expansions + 1)`; `group_size` is not used."""
        del group_size
        return self.trees * (self.rounds * self.expansions + 1)

    async def group(self, group: Group) -> None:
        """Chains, then rounds of expansion."""
        trees = [[group.start(facts={"tree": str(number)})] for number in range(self.trees)]
        await group.run([branch for tree in trees for branch in tree])
        for number in range(self.rounds):
            grown = [self._expanded(group, tree, f"{number}.{place}") for place, tree in enumerate(trees)]
            await group.run([branch for branches in grown for branch in branches])
            trees = [[*tree, *branches] for tree, branches in zip(trees, grown, strict=True)]

    def _expanded(self, group: Group, tree: list[Branch], name: str) -> list[Branch]:
        """New branches of one tree."""
        nodes = [node for branch in tree for node in _nodes(branch)]
        by_chance = sorted(range(len(nodes)), key=lambda row: group.uniform("node", name, row))
        chosen = [nodes[row] for row in sorted(by_chance[: self.expansions])]
        return [branch.fork(place) for branch, place in chosen]


def _nodes(branch: Branch) -> list[tuple[Branch, Position]]:
    """The places where a branch can be left: before each own turn, and before those of its forks after the first."""
    inherited = 0 if branch.parent is None else branch.key[-2]
    own = [turn for turn in branch.turns if turn.begin.tokens >= inherited]
    return [(branch, turn.begin) for turn in own[0 if branch.parent is None else 1 :]]


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
