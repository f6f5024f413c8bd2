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
    """Goes on where upper confidence bounds say, and plays to the end from there (as Agent-R, arXiv:2501.11425).

    Each iteration walks down the tree of turns, from the beginning, to the first place with fewer than `samples`
    actions, by

        UCB = Q + exploration * sqrt(ln N / n)

    with Q the mean reward of the branches through a turn, n how many ended, and N that of the turn before. There it
    adds actions until there are `samples`, and plays each new branch to its end, or to `depth` turns; what it is paid
    counts for all turns on its path. `parallel` places grow in one iteration: their walks see each other as visits of
    value 0 (a virtual loss), so the tree depends on the seeds and not on who is faster. Where a branch was played
    through, its own next action is one of the `samples`: none is thrown away.

    Args:
        iterations: walks, one after the other.
        samples: actions of each place that was expanded.
        depth: turns of a branch, at most.
        exploration: weight of what was tried seldom.
        parallel: places that grow in one iteration.
        searches: the folder of a store: a task whose search is stored there goes on where it stood; empty: none does.

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
        """At most `iterations * parallel * samples`; `group_size` is not used."""
        del group_size
        return self.iterations * self.parallel * self.samples

    async def group(self, group: Group) -> None:
        """Walks down, new branches, their ends."""
        StoredSearches(self.searches).resume(group)
        for _ in range(self.iterations):
            tree = group.tree
            places = tree.descend(self.parallel, width=self.samples, depth=self.depth, exploration=self.exploration)
            more = [turn for turn in places for _ in range(self.samples - len(tree.children(turn)))]
            if not more:
                return
            await group.run(tree.expand(more), self._play)

    async def _play(self, branch: Branch) -> None:
        """Turn after turn to the end, or to the depth."""
        while not branch.over and len(branch.turns) < self.depth:
            await branch.turn()
        if not branch.over:
            branch.path.flush()  # what it leads to is known, and other branches can leave it
