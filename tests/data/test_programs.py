"""Operations of rollout programs on a forest through public methods; the crate checks the same numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from agentrl_core import Batch, Forest
from agentrl_core.exceptions import InvalidInputError, NotFoundError


@pytest.fixture
def forest() -> Forest:
    forest = Forest(iteration=2, seed=9)
    forest.add_group(0, "task")
    return forest


def start_trajectory(forest: Forest, member: int = 0) -> int:
    trajectory = forest.start(0, member)
    forest.append(trajectory, [1, 2], kind="prompt")
    return trajectory


def without_time(batch: Batch) -> list[pl.DataFrame]:
    nodes = pl.DataFrame(batch.nodes).drop("created_us")
    return [nodes, *(pl.DataFrame(getattr(batch, name)) for name in ("steps", "trajectories", "draws"))]


def acted(
    forest: Forest,
    trajectory: int,
    tokens: list[int],
    *,
    reward: float | None = None,
    observation: list[int] | None = None,
    state: str | None = None,
    seed: int | None = None,
) -> int:
    """Append an action and its answer; return the node of the action."""
    node = forest.append(trajectory, tokens, kind="action", logprobs=[-0.5] * len(tokens), seed=seed)
    forest.step(trajectory, reward=reward)
    if observation is not None:
        forest.append(trajectory, observation, kind="observation", state=state)
    return node


def test_groups_freeze_in_the_order_of_their_keys() -> None:
    keys = {"late": [3, 1], "early": np.array([2, 5]), "child": (2, 5, 0), "plain": None}

    def frozen(order: list[str]) -> Batch:
        forest = Forest(iteration=3)
        for place, name in enumerate(order):
            number = 7 if keys[name] is None else place
            forest.add_group(number, name, key=keys[name])
            trajectory = forest.start(number, 0)
            forest.append(trajectory, [len(name), 2], kind="prompt")
            acted(forest, trajectory, [3], seed=forest.segment_seed(trajectory))
            forest.finish(trajectory)
        return forest.freeze()

    batch = frozen(["late", "early", "child", "plain"])
    tasks = pl.DataFrame(batch.trajectories).unique("group_id", maintain_order=True)
    assert tasks["task_id"].to_list() == ["early", "child", "late", "plain"]
    assert tasks["group_id"].to_list() == [0, 1, 2, 3]
    again = frozen(["child", "plain", "early", "late"])
    assert all(
        one.equals(other, null_equal=True) for one, other in zip(without_time(batch), without_time(again), strict=True)
    )


def test_a_key_decides_about_seeds(forest: Forest) -> None:
    later = Forest(iteration=5, seed=9)
    for number, key in enumerate([(2, 0), (2, 0, 0), (2,)]):
        later.add_group(number, "task", key=key)
    seed = forest.segment_seed(forest.start(0, 4))
    assert [later.segment_seed(later.start(number, 4)) == seed for number in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((2, 0), r"key \[2, 0\] of group 1 is already the key of group 0; give each group its own"),
        ((), "key is empty"),
        ((1, -1), "key is -1; give a whole number"),
        ((2**63,), r"key\[0\] is 9223372036854775808; give a number of at most"),
        ((0.5,), "key is 0.5; give a whole number"),
    ],
)
def test_a_bad_key_is_refused(forest: Forest, key: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        forest.add_group(1, "task", key=key)
    forest.add_group(1, "task", key=(2, 1))


def test_a_fork_of_a_rolled_back_trajectory_can_leave_its_prefix_untrained(forest: Forest) -> None:
    trunk = start_trajectory(forest)
    wrong = acted(forest, trunk, [3, 4], reward=0.0, observation=[5])
    forest.rollback(trunk, wrong, 1)
    mended = forest.fork(trunk, train_prefix=False)
    acted(forest, mended, [6], reward=1.0)
    forest.finish(mended, reward=1.0)
    forest.abort()
    batch = forest.freeze()
    assert batch.column("token", "token").tolist() == [3, 4, 6]
    assert batch.column("trainable", "token").tolist() == [0, 0, 1]
    assert batch.column("reward", "step").tolist() == [0.0, 1.0]


def test_an_untrained_prefix_stays_untrained_after_splice_rollback_and_reprompt(forest: Forest) -> None:
    trunk = start_trajectory(forest)
    acted(forest, trunk, [3], observation=[5])
    good = start_trajectory(forest, 1)
    node = acted(forest, good, [7], observation=[5])
    forest.finish(good, reward=1.0)

    def mended() -> int:
        branch = forest.fork(trunk, train_prefix=False)
        acted(forest, branch, [4], observation=[5])
        return branch

    spliced = forest.splice(mended(), good, from_node=node, start=0)
    other = mended()
    back = forest.rollback(other, acted(forest, other, [6]), 0)
    reprompted = forest.with_prompt(mended(), np.array([9]))
    fork = forest.fork(mended())
    for branch, last in zip((spliced, back, reprompted, fork), (10, 11, 12, 13), strict=True):
        acted(forest, branch, [last])
        forest.finish(branch, reward=0.0)
    forest.abort()
    batch = forest.freeze()
    trained = dict(zip(map(tuple, tokens_of(batch)), tokens_of(batch, "trainable"), strict=True))
    assert trained == {
        (7,): [1],
        (3, 4, 7, 10): [0, 1, 1, 1],
        (3, 4, 11): [0, 1, 1],
        (3, 4, 12): [0, 1, 1],
        (3, 4, 13): [1, 1, 1],  # a fork of it trains the inherited part, as requested
    }


def test_forks_of_one_episode_share_its_episode_id(forest: Forest) -> None:
    one, two = start_trajectory(forest), start_trajectory(forest, 1)
    acted(forest, one, [3], observation=[5])
    acted(forest, two, [4], observation=[5])
    first = forest.fork(one)
    second = forest.fork(two, episode=first)
    third = forest.fork(two, episode=second)
    for branch in (first, second, third):
        forest.finish(branch, reward=0.0)
    forest.add_group(1, "task")
    with pytest.raises(InvalidInputError, match="a trajectory of another group"):
        forest.fork(one, episode=forest.start(1, 0))
    forest.abort()
    rows = pl.DataFrame(forest.freeze().trajectories)
    shared = rows.filter(pl.col("status") == 0)["episode_id"]
    assert (len(shared), shared.n_unique()) == (3, 1)
    assert rows.filter(pl.col("status") != 0)["episode_id"].n_unique() == 2, "those that were forked are others"


def tokens_of(batch: Batch, column: str = "token") -> list[list[int]]:
    """Return the values of each draw."""
    offsets = batch.offsets("token")[batch.offsets("step")]
    return [batch.column(column, "token")[one:other].tolist() for one, other in pairwise(offsets.tolist())]


def test_a_snapshot_returns_the_handles_of_its_rows(forest: Forest) -> None:
    one, other = start_trajectory(forest, 1), start_trajectory(forest, 0)
    for trajectory, token in ((one, 3), (other, 4)):
        acted(forest, trajectory, [token], observation=[9])
    forest.finish(one, reward=0.25)
    batch, handles = forest.snapshot(0)
    assert handles.dtype == np.int64
    assert handles.tolist() == [other, one]
    rows = pl.DataFrame(batch.trajectories)
    assert rows["status"].to_list() == [5, 0]
    assert rows["reward"].to_list() == [None, 0.25]
    assert (batch.num_draws, len(forest)) == (1, 1)
    acted(forest, other, [5])
    assert len(forest.snapshot(0)[0].steps) == len(batch.steps) + 1
    with pytest.raises(NotFoundError, match="group 3 is not in the forest"):
        forest.snapshot(3)


def test_with_prompt_copies_actions_after_another_prompt(forest: Forest) -> None:
    original = start_trajectory(forest)
    acted(forest, original, [3, 4], reward=0.5, observation=[5], state="room")
    acted(forest, original, [6], reward=1.0)
    forest.finish(original, reward=1.5)
    reprompted = forest.with_prompt(original, np.array([8]))
    assert forest.tokens(reprompted).tolist() == [8, 3, 4, 5, 6]
    forest.finish(reprompted, reward=1.5)
    batch = forest.freeze()
    assert batch.column("reward", "step").tolist() == [0.5, 1.0, 0.5, 1.0]
    assert np.isnan(batch.column("behaviour_logprob", "token")).tolist() == [False] * 3 + [True] * 3
    keys = batch.keys("state_key", "step")
    assert keys[0] == keys[2]
    assert keys[1] == keys[3]
    nodes = pl.DataFrame(batch.nodes)
    assert nodes["origin_node_id"].drop_nulls().len() == 3
