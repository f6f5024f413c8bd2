"""Monte Carlo tree search over turns."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core.component.options import option
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout
from agentrl_core.rollout.programs.stored_search import StoredSearches


@dataclass(frozen=True)
class MonteCarlo(Rollout):
    """Monte Carlo tree search: expand by upper confidence bounds, and play to the end (as Agent-R, arXiv:2501.11425).

    Each iteration walks down the tree of turns, from the start, to the first node with fewer than `samples` actions, by

        UCB = Q + exploration * sqrt(ln N / n)

    with Q the mean reward of the branches through a turn, n how many ended, and N that of the turn before. There it
    adds actions until there are `samples`, and plays each new branch to its end, or to `depth` turns; its reward counts
    for all turns on its path. `parallel` nodes are expanded per iteration: their walks count each other as visits of
    value 0 (a virtual loss), so the tree depends on the seeds and not on timing. The next action of an existing branch
    through a node is one of the `samples`, so no action is wasted.

    Args:
        iterations: number of sequential iterations.
        samples: actions of each expanded node.
        depth: largest number of turns of a branch.
        exploration: weight of rarely visited turns.
        parallel: nodes expanded per iteration.
        searches: folder of a store with earlier searches to continue; empty: none.

    Example:
        >>> from agentrl_core.rollout import MonteCarlo
        >>> MonteCarlo(iterations=4, samples=4).final_group_size(group_size=8)
        16
    """

    iterations: int = option(4, at_least=1)
    samples: int = option(4, at_least=1)
    depth: int = option(10, at_least=1)
    exploration: float = option(0.25, at_least=0)
    parallel: int = option(1, at_least=1)
    searches: str = ""

    def final_group_size(self, group_size: int) -> int:
        """Return the largest possible number, `iterations * parallel * samples`; `group_size` is not used."""
        del group_size
        return self.iterations * self.parallel * self.samples

    async def group(self, group: Group) -> None:
        """Run all iterations of the search: walk down, expand, and play to the end."""
        StoredSearches(self.searches).resume(group)
        for _ in range(self.iterations):
            tree = group.tree
            places = tree.descend(self.parallel, width=self.samples, depth=self.depth, exploration=self.exploration)
            more = [turn for turn in places for _ in range(self.samples - len(tree.children(turn)))]
            if not more:
                return
            await group.run(tree.expand(more), self._play)

    async def _play(self, branch: Branch) -> None:
        """Run turns of a branch to the end of its episode, or to `depth`."""
        while not branch.over and len(branch.turns) < self.depth:
            await branch.turn()
        if not branch.over:
            branch.path.flush()  # its result is known, and other branches can fork from it
