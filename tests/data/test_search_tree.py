"""Turns and states of a group, read from a forest and from its batch, for unusual shares, cuts and ends of branches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl_core import Forest, _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout import SearchTree


@pytest.fixture
def forest() -> Forest:
    forest = Forest()
    forest.add_group(0, "task")
    return forest


def start_trajectory(forest: Forest, member: int = 0, group: int = 0) -> int:
    trajectory = forest.start(group, member)
    forest.append(trajectory, [1, 2], kind="prompt", state="hall")
    return trajectory


def acted(forest: Forest, trajectory: int, logprobs: list[float], state: str | None, *, over: bool = False) -> int:
    node = forest.append(trajectory, [3] * len(logprobs), kind="action", logprobs=logprobs)
    forest.step(trajectory, terminated=over)
    if state is not None:
        forest.append(trajectory, [4], kind="observation", state=state)
    return node


def followed(forest: Forest, group: int = 0) -> SearchTree:
    core = _core.SearchTree()
    core.follow(forest._core, group)
    return SearchTree(core)


def test_a_fork_inside_an_action_has_its_own_turn(forest: Forest) -> None:
    trunk = start_trajectory(forest)
    action = acted(forest, trunk, [-0.5, -1.0], "room")
    branch = forest.fork(trunk, node=action, end=1)
    acted(forest, branch, [-0.25], "cellar")
    tree = followed(forest)
    # The trunk: -0.5 - 1. The branch shares the first token: -0.5 - 0.25. Both start in the hall.
    assert tree.parent.tolist() == [-1, -1]
    np.testing.assert_allclose(tree.logprob, [-1.5, -0.75])
    assert tree.state[0] == tree.state[1]
    assert tree.next_state[0] != tree.next_state[1]
    assert [tree.path(row) for row in (0, 1)] == [[0], [1]]
    inside = forest.fork(branch)
    acted(forest, inside, [-0.5], None, over=True)
    forest.finish(inside, reward=1.0, success=True)
    forest.abort()
    batch = forest.freeze()
    stored = SearchTree.of(batch, 0)
    assert sorted(zip(stored.parent.tolist(), stored.logprob.tolist(), strict=True)) == [
        (-1, -1.5),
        (-1, -0.75),
        (1, -0.5),
    ]
    assert stored.solution() == [1, 2]
    assert stored.visits.tolist() == [0, 1, 1]


def test_a_turn_enters_the_tree_after_its_observation_or_when_its_branch_is_pruned(forest: Forest) -> None:
    trunk = start_trajectory(forest)
    node = forest.append(trunk, [3], kind="action", logprobs=[-0.5])
    core = _core.SearchTree()
    core.follow(forest._core, 0)
    assert len(core) == 0, "the action is open"
    forest.step(trunk)
    core.follow(forest._core, 0)
    assert len(core) == 0, "what it leads to is not known"
    forest.append(trunk, [4], kind="observation", state="room")
    core.follow(forest._core, 0)
    assert (len(core), core.frontier(9)) == (1, [0])
    core.follow(forest._core, 0)
    assert len(core) == 1, "nothing is read twice"
    # A branch dropped before an answer leads to an unknown state.
    other = forest.fork(trunk, node=node, end=1)
    acted(forest, other, [-0.5], None)
    forest.prune(other, "given up")
    core.follow(forest._core, 0)
    assert len(core) == 2
    assert core.status.tolist() == [0, 0, 0]
    assert core.repeated(0) == []


def test_failed_and_truncated_ends_are_not_solved(forest: Forest) -> None:
    ends = {"failed": None, "truncated": 0.0, "finished": 0.5}
    for member, (status, reward) in enumerate(ends.items()):
        branch = start_trajectory(forest, member)
        forest.append(branch, [3], kind="action", logprobs=[-0.5])
        forest.step(branch, truncated=status == "truncated", terminated=status == "finished")
        forest.finish(branch, reward=reward, success=False, status=status)  # type: ignore[arg-type]
    tree = followed(forest)
    assert tree.status == ["failed"] * 4
    assert tree.value[1:].tolist() == [0.0, 0.5]
    assert np.isnan(tree.value[0])
    stored = SearchTree.of(forest.freeze(), 0)
    assert stored.status == tree.status
    np.testing.assert_array_equal(stored.value, tree.value)
    # A success reported by a program counts for the current state of the branch.
    forest.add_group(1, "task")
    solved = start_trajectory(forest, 0, 1)
    acted(forest, solved, [-0.5], "room")
    forest.finish(solved, reward=1.0, success=True)
    tree = followed(forest, 1)
    assert (tree.status, tree.distance.tolist()) == (["solved", "solved"], [1, 0])


def test_a_tree_follows_one_group(forest: Forest) -> None:
    forest.add_group(1, "task")
    core = _core.SearchTree()
    core.follow(forest._core, 0)
    with pytest.raises(InvalidInputError, match="the search tree follows another group"):
        core.follow(forest._core, 1)
    acted(forest, start_trajectory(forest), [-0.5], "room")
    core.follow(forest._core, 0)
    grafted = start_trajectory(forest, 1)
    core.graft(forest._core, grafted, 0)
    with pytest.raises(InvalidInputError, match="graft it before its first turn"):
        core.graft(forest._core, grafted, 0)
    with pytest.raises(InvalidInputError, match="turn is 7, but the search has 1 turns"):
        core.graft(forest._core, start_trajectory(forest, 2), 7)
    acted(forest, grafted, [-0.5], "room")
    acted(forest, grafted, [-0.25], "attic")
    core.follow(forest._core, 0)
    assert core.parent.tolist() == [-1, 0], "its first turn is that of the tree"
    assert core.taken(1) == (grafted, 1)
    with pytest.raises(InvalidInputError, match="turn is -1; give a whole number"):
        core.path(-1)


def facts_of(tree: SearchTree) -> list[tuple[object, ...]]:
    """Each turn by its agent, whatever its row: previous agent, log-prob, visits, value and states."""
    steps = list(zip(tree.trajectory.tolist(), tree.step.tolist(), strict=True))
    parents = [steps[parent] if parent >= 0 else None for parent in tree.parent.tolist()]
    status, distance = tree.status, tree.distance.tolist()
    states = [(status[state], distance[state]) for state in tree.next_state.tolist()]
    columns = zip(steps, parents, tree.logprob.tolist(), tree.visits.tolist(), tree.best.tolist(), states, strict=True)
    return sorted([tuple(map(repr, row)) for row in columns])


@settings(max_examples=60, deadline=None)
@example([(4, 1, False), (0, 2, False), (1, 3, True), (4, 1, False)])  # a turn that leads back to a failed state
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_a_tree_read_incrementally_equals_one_read_at_once(moves: list[tuple[int, int, bool]]) -> None:
    forest = Forest()
    forest.add_group(0, "task")
    core = _core.SearchTree()
    standing, over = [start_trajectory(forest)], []
    for number, (place, kind, read) in enumerate(moves):
        branch = standing[place % len(standing)]
        match kind:
            case 0:
                standing.append(start_trajectory(forest, number + 1))
            case 1:
                acted(forest, branch, [-0.25], f"state {place % 5}")
            case 2:
                standing.append(forest.fork(branch))
            case 3 if len(standing) > 1:
                acted(forest, branch, [-0.5], None, over=True)
                forest.finish(branch, reward=place / 100, success=place % 3 == 0)
                standing.remove(branch)
                over.append(branch)
            case 4 if len(standing) > 1:
                acted(forest, branch, [-0.5], f"state {place % 5}")
                forest.prune(branch, "given up")
                standing.remove(branch)
            case 5 if over:
                again = forest.fork(over[place % len(over)], node=None)
                forest.prune(again, "nothing is left to try")
        if read:
            core.follow(forest._core, 0)
    core.follow(forest._core, 0)
    assert facts_of(SearchTree(core)) == facts_of(followed(forest))
    forest.abort()
    core.follow(forest._core, 0)
    assert facts_of(SearchTree(core)) == facts_of(followed(forest))
