"""The tree of a search: the turns of a group and their states, with statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.data.forest import Forest
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.turn import dereference

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.rollout.branch import Branch

STATUSES = ("open", "solved", "failed")
BEGIN = -1
"""Row number that represents the start, before the first turn."""


class SearchTree:
    """The turns and states of one group as columns, with methods for searches.

    A turn is an action and its result; shared turns occur once. Turns form a tree, by `parent`. A turn leads from a
    state to the next one, identified by their keys, so states form a graph. Turns and states are identified by their
    rows. `Group.tree` is the tree of a group that grows, `SearchTree.of` one of a batch.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.rollout import SearchTree
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "find the exit")
        >>> for member, solved in enumerate([False, True]):
        ...     branch = forest.start(0, member)
        ...     _ = forest.append(branch, [1, 2], kind="prompt", state="hall")
        ...     _ = forest.append(branch, [3 + member], kind="action", logprobs=[-0.5])
        ...     forest.step(branch, terminated=True)
        ...     forest.finish(branch, reward=float(solved), success=solved)
        >>> tree = SearchTree.of(forest.freeze(), group_id=0)
        >>> tree.value.tolist(), tree.solution(), tree.pairs()
        ([0.0, 1.0], [1], [(1, 0)])
    """

    def __init__(self, core: _core.SearchTree) -> None:
        self._core = core

    @classmethod
    def of(cls, batch: Batch, group_id: int) -> SearchTree:
        """Return the tree of one group of a frozen batch, with trajectories identified by their ids.

        Args:
            batch: the batch of the group.
            group_id: id in table `trajectories`.
        """
        return SearchTree(_core.SearchTree.of(batch._core, group_id))  # noqa: SLF001

    def __len__(self) -> int:
        """Number of turns."""
        return len(self._core)

    @property
    def trajectory(self) -> NDArray[np.int64]:
        """`int64[turns]`: the trajectory of each turn, as a handle of the forest or an id of the batch."""
        return self._core.trajectory

    @property
    def step(self) -> NDArray[np.uint32]:
        """`uint32[turns]`: the number of each turn in its trajectory, from 0."""
        return self._core.step

    @property
    def parent(self) -> NDArray[np.int64]:
        """`int64[turns]`: the turn before each turn; -1 for a first turn."""
        return self._core.parent

    @property
    def state(self) -> NDArray[np.uint32]:
        """`uint32[turns]`: the state before each turn."""
        return self._core.before

    @property
    def next_state(self) -> NDArray[np.uint32]:
        """`uint32[turns]`: the state after each turn; each end of an episode is a separate state."""
        return self._core.after

    @property
    def logprob(self) -> NDArray[np.float64]:
        """`float64[turns]`: log-prob of the sampled tokens of each turn, summed."""
        return self._core.logprob

    @property
    def path_logprob(self) -> NDArray[np.float64]:
        """`float64[turns]`: log-prob of all turns up to and including each turn, summed."""
        return self._core.path_logprob

    @property
    def visits(self) -> NDArray[np.uint32]:
        """`uint32[turns]`: the number of branches that go through each turn and ended with a reward."""
        return self._core.visits

    @property
    def value(self) -> NDArray[np.float64]:
        """`float64[turns]`: the mean reward of the ended branches through each turn; NaN without any."""
        return self._core.value

    @property
    def best(self) -> NDArray[np.float64]:
        """`float64[turns]`: the largest reward of the ended branches through each turn; NaN without any."""
        return self._core.best

    @property
    def status(self) -> list[Literal["open", "solved", "failed"]]:
        """Status of each state: `solved`, `failed` or `open`.

        `solved`: the state is a solved end, or a turn leads from it to a solved state. `failed`: it is another end, or
        all tried turns lead to failed states. `open`: all others.
        """
        return [STATUSES[code] for code in self._core.status.tolist()]  # type: ignore[misc]

    @property
    def distance(self) -> NDArray[np.int64]:
        """`int64[states]`: the smallest number of turns from each state to a solved end; -1 if unknown."""
        return self._core.distance

    @property
    def first_turn(self) -> NDArray[np.int64]:
        """`int64[states]`: the turn that reached each state first; -1 for first states of episodes."""
        return self._core.first

    def repeated(self, since: int = 0) -> list[int]:
        """Return the turns, from row `since` on, that led to a state that an earlier turn had already reached."""
        return self._core.repeated(since)

    def expandable(self) -> list[int]:
        """Return the turns that can be expanded: those that did not end their episode."""
        places: list[int] = np.flatnonzero(~self._core.ended[self.next_state]).tolist()
        return places

    def prefix(self, batch: Batch, turn: int) -> Prefix:
        """Return the prefix with which a branch of a later group continues after a turn.

        Args:
            batch: the batch of this tree.
            turn: row of the turn.
        """
        trajectory, step = self._core.taken(turn)
        return Prefix.stored(batch, trajectory, turns=step + 1, seed=self._core.seed(turn))

    def children(self, turn: int) -> list[int]:
        """Return the turns that follow a turn directly; the first turns for -1."""
        return self._core.children(turn)

    def path(self, turn: int) -> list[int]:
        """Return the turns from the start to a turn, included."""
        return self._core.path(turn)

    def frontier(self, count: int) -> list[int]:
        """Return at most `count` turns that lead to open states without tried turns, likeliest path first.

        Turns are sorted by the log-prob of their path; ties: the earlier one.
        """
        return self._core.frontier(count)

    def descend(self, count: int, *, width: int, depth: int, exploration: float) -> list[int]:
        """Choose at most `count` turns to expand by upper confidence bounds; -1 is the start.

        Each is found by a walk from the start. It ends at a turn with fewer than `width` children, otherwise it
        continues with the child with the largest

            Q + exploration * sqrt(ln N / n)      (Q: `value`, n: `visits`, N: those of the turn before)

        Unvisited turns come first; ties: the earlier one. Ends, and turns at depth `depth`, are not followed. The walks
        of one call count each other as visits of value 0 (a virtual loss), and end at different turns: the choice
        depends on the tree alone, not on timing.

        Raises:
            InvalidInputError: width or depth is 0, or exploration negative.
        """
        return self._core.descend(count, width, depth, exploration)

    def under_sampled(self, count: int) -> list[int]:
        """Choose at most `count` turns that are under-sampled relative to their probability; -1 is the start.

        Each is found by a walk from the start, which continues with the turn whose share of the visits is furthest
        below its share of the probability, `n / sum(n) - p / sum(p)` over the turns that follow, until none does; one
        that ends its episode is not followed. The walks of one call count as visits of each other.
        """
        return self._core.under_sampled(count)

    def solution(self) -> list[int]:
        """Return the turns of a shortest path to a solved end; empty if unknown."""
        return self._core.solution()

    def pairs(self) -> list[tuple[int, int]]:
        """Return pairs of turns: one of the solution, and one from the same state that ended the episode unsolved.

        Preferred turns are those of the `solution`; rejected ones were tried in the same state and ended the episode
        unsolved.
        """
        return self._core.pairs()

    def best_leaf(self) -> int | None:
        """Return the last turn of a path with the largest value; ties: the earlier one; None without values."""
        return self._core.best_leaf()


class GroupTree(SearchTree):
    """The search tree of a running group, updated as the group grows; see `Group.tree`.

    Args:
        group: the `Group`.
        forest: forest of its branches.
        stored: batch of a stored search to continue.
        group_id: id of the stored group.
    """

    def __init__(self, group: Any, forest: Forest, stored: Batch | None = None, group_id: int = 0) -> None:
        super().__init__(_core.SearchTree() if stored is None else _core.SearchTree.of(stored._core, group_id))  # noqa: SLF001
        self._of = ref(group)
        self._forest = forest
        self._stored = stored
        self._stored_turns = len(self._core)
        self._answered = list(group.branches)
        self._owners: dict[int, Branch] = {}
        self._known = 0

    @property
    def _group(self) -> Any:
        """The group that owns this tree."""
        return dereference(self._of, "the group of a tree")

    def on_turn(self, branch: Branch) -> None:
        """Record an answered turn, which is not in the forest yet."""
        self._answered.append(branch)

    def follow(self) -> None:
        """Update the tree with the changes of the forest since the last call."""
        answered, self._answered = self._answered, []
        for branch in answered:
            if not branch.over and branch.path.waits:
                branch.path.flush()
        self._core.follow(self._forest._core, self._group.number)  # noqa: SLF001

    def branch(self, turn: int) -> Branch:
        """Return the branch of a turn.

        Raises:
            KeyError: the turn is of a stored search, or of a branch that was rolled back.
        """
        handle, _ = self._core.taken(turn)
        if handle not in self._owners:
            branches = self._group.branches
            self._owners.update((branch.handle, branch) for branch in branches[self._known :])
            self._known = len(branches)
        if handle not in self._owners:
            self._owners = {branch.handle: branch for branch in self._group.branches}
        return self._owners[handle]

    def expand(self, turns: Sequence[int], *, score: float | None = None) -> list[Branch]:
        """Return branches that continue after turns, one each; -1 is the start.

        If the turn is the last one of a running branch without an open action, that branch itself is returned, once;
        otherwise a fork of the turn's branch. After a turn of a stored search, a new branch starts with the actions up
        to that turn as a prefix, which it did not sample and which is not trained.

        Args:
            turns: rows, in any order.
            score: score of the decision, for the log of the search.
        """
        taken: set[Branch] = set()
        grown = []
        for turn in turns:
            branch = self._branch_after(turn, taken, score)
            taken.add(branch)
            grown.append(branch)
        return grown

    def _branch_after(self, turn: int, taken: set[Branch], score: float | None) -> Branch:
        if turn == BEGIN:
            branch: Branch = self._group.start()
            return branch
        if turn < self._stored_turns and self._stored is not None:
            branch = self._group.start(prefix=self.prefix(self._stored, turn))
            self._core.graft(self._forest._core, branch.handle, turn)  # noqa: SLF001
            return branch
        branch, step = self.branch(turn), self._core.taken(turn)[1]
        if not branch.over and branch not in taken and not branch.has_open_action and len(branch.turns) == step + 1:
            return branch
        return branch.fork(branch.turns[step].end, score=score)
