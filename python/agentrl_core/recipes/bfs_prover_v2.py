"""BFS-Prover-V2: best-first search for proofs, whose steps train the prover (arXiv:2509.06493).

A tree of each theorem grows where the log-prob of the path is largest; `BestFirst` has the rules. A branch that
ends is worth 1 where the theorem is proved and 0 else, and what is worth something is imitated: steps of proofs. The
paper keeps the steps whose mean negative log-prob lies in a middle band (its bounds are not published), and prefers
the actions of the shortest proof to siblings that end in an error (`SearchTree.pairs`). Both are made of the stored
batch and are not part of this recipe; nor are the planner of its inference and the restart from the base model.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Imitation
from agentrl_core.rollout import Group, Rollout, StoredSearches

_BEGIN = -1
"""Where `SearchTree.expand` tries first actions."""


@dataclass(frozen=True)
class BestFirst(Rollout):
    """Tries several actions in the most promising state, again and again (BFS-Prover-V2, arXiv:2509.06493).

    A state is what the environment says it is (`state_key`), however many ways lead to it, and is expanded once. Each
    round takes the `width` open states whose path has the largest log-prob, the sum over the sampled tokens of all its
    actions, and tries `samples` actions in each. A branch that comes to a state which was reached before stops there.
    A state is solved if an action leads from it to a solved one, and failed if all that were tried lead to failed
    ones. The search ends with the first solution (where `until_solved`), without open states, or when `budget` actions
    were sampled. Branches that ended are drawn; those that the search left standing are kept.

    `Group.tree` has the solution, the distances and the preference pairs then; `SearchTree.of` finds them again in the
    stored batch.

    Args:
        samples: actions that are tried in a state.
        width: states that are expanded in a round.
        budget: actions of a group, at most.
        until_solved: whether the first solution ends the search.
        searches: the folder of a store: a task whose search is stored there goes on where it stood; empty: none does.

    Example:
        >>> from agentrl_core.recipes.bfs_prover_v2 import BestFirst
        >>> BestFirst(samples=4, budget=64).samples
        4
    """

    samples: int = option(8, at_least=1)
    width: int = option(1, at_least=1)
    budget: int = option(128, at_least=1)
    until_solved: bool = True
    searches: str = ""

    async def group(self, group: Group) -> None:
        """Rounds of one action in each of the most promising states."""
        StoredSearches(self.searches).resume(group)
        turns = group.tree.frontier(self.width) if len(group.tree) else [_BEGIN]
        left = self.budget
        while turns and left:
            tree = group.tree
            known = len(tree)
            tried = [turn for turn in turns for _ in range(self.samples)][:left]
            await group.turn(tree.expand(tried))
            left -= len(tried)
            tree = group.tree
            for turn in tree.repeated(known):
                tree.branch(turn).stop("state reached before")
            solved = self.until_solved and bool(tree.solution())
            turns = [] if solved else tree.frontier(self.width)


BFS_PROVER_V2 = Recipe(
    name="bfs_prover_v2",
    source="arXiv:2509.06493",
    rollout=BestFirst(samples=8, width=1, budget=128),
    advantage=GroupRelative(center="none", scale="none"),
    loss=Imitation(tokens="positive"),
)
