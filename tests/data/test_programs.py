"""What rollout programs ask of a forest, through the public methods; the numbers are checked beside the crate."""

from __future__ import annotations

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


def begun(forest: Forest, member: int = 0) -> int:
    trajectory = forest.start(0, member)
    forest.append(trajectory, [1, 2], kind="prompt")
    return trajectory


def without_time(batch: Batch) -> list[pl.DataFrame]:
    nodes = pl.DataFrame(batch.nodes).drop("created_us")
    return [nodes, *(pl.DataFrame(getattr(batch, name)) for name in ("steps", "trajectories", "draws"))]


def test_groups_freeze_in_the_order_of_their_keys() -> None:
    keys = {"late": [3, 1], "early": np.array([2, 5]), "child": (2, 5, 0), "plain": None}

    def frozen(order: list[str]) -> Batch:
        forest = Forest(iteration=3)
        for place, name in enumerate(order):
            number = 7 if keys[name] is None else place
            forest.add_group(number, name, key=keys[name])
            trajectory = forest.start(number, 0)
            forest.append(trajectory, [len(name), 2], kind="prompt")
            forest.turn(trajectory, [3], logprobs=[-0.5], seed=forest.segment_seed(trajectory))
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
        ((2, 0), r"key \[2, 0\] of group 1 is that of group 0; give each group its own"),
        ((), "key is empty"),
        ((1, -1), "key is -1; give a whole number"),
        ((2**63,), r"key\[0\] is 9223372036854775808; it must be at most"),
        ((0.5,), "key is 0.5; give a whole number"),
    ],
)
def test_a_bad_key_is_refused(forest: Forest, key: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        forest.add_group(1, "task", key=key)
    forest.add_group(1, "task", key=(2, 1))


def test_what_was_rolled_back_is_repaired(forest: Forest) -> None:
    trunk = begun(forest)
    wrong, _ = forest.turn(trunk, [3, 4], logprobs=[-0.5, -0.5], reward=0.0, observation=[5])
    forest.rollback(trunk, wrong, 1)
    mended = forest.fork(trunk, train_prefix=False)
    forest.turn(mended, [6], logprobs=[-0.5], reward=1.0)
    forest.finish(mended, reward=1.0)
    forest.abort()
    batch = forest.freeze()
    assert batch.column("token", "token").tolist() == [3, 4, 6]
    assert batch.column("trainable", "token").tolist() == [0, 0, 1]
    assert batch.column("reward", "step").tolist() == [0.0, 1.0]


def test_a_look_has_the_handles_of_its_rows(forest: Forest) -> None:
    one, other = begun(forest, 1), begun(forest, 0)
    for trajectory, token in ((one, 3), (other, 4)):
        forest.turn(trajectory, [token], logprobs=[-0.5], observation=[9])
    forest.finish(one, reward=0.25)
    batch, handles = forest.look(0)
    assert handles.dtype == np.int64
    assert handles.tolist() == [other, one]
    rows = pl.DataFrame(batch.trajectories)
    assert rows["status"].to_list() == [5, 0]
    assert rows["reward"].to_list() == [None, 0.25]
    assert (batch.num_draws, len(forest)) == (1, 1)
    forest.turn(other, [5], logprobs=[-0.5])
    assert len(forest.look(0)[0].steps) == len(batch.steps) + 1
    with pytest.raises(NotFoundError, match="group 3 is not in the forest"):
        forest.look(3)


def test_actions_are_told_behind_another_prompt(forest: Forest) -> None:
    shown = begun(forest)
    forest.turn(shown, [3, 4], logprobs=[-0.5, -0.5], reward=0.5, observation=[5], state="room")
    forest.turn(shown, [6], logprobs=[-0.5], reward=1.0, terminated=True)
    forest.finish(shown, reward=1.5)
    told = forest.under(shown, np.array([8]))
    assert forest.tokens(told).tolist() == [8, 3, 4, 5, 6]
    forest.finish(told, reward=1.5)
    batch = forest.freeze()
    assert batch.column("reward", "step").tolist() == [0.5, 1.0, 0.5, 1.0]
    assert np.isnan(batch.column("behaviour_logprob", "token")).tolist() == [False] * 3 + [True] * 3
    keys = batch.keys("state_key", "step")
    assert keys[0] == keys[2]
    assert keys[1] == keys[3]
    nodes = pl.DataFrame(batch.nodes)
    assert nodes["origin_node_id"].drop_nulls().len() == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "room"}, "state is given without an observation"),
        ({"blobs": [bytes(32)]}, "blobs is given without an observation"),
        ({"observation": []}, "tokens is empty"),
        ({"observation": [5], "end_of_turn": [-3]}, r"tokens\[0\] is -3"),
        ({"logprobs": [-0.5, -0.5]}, "logprobs has 2 values for 1 tokens"),
        ({"reward": float("inf")}, "reward is inf"),
        ({"finish_reason": "tired"}, "finish_reason"),
    ],
)
def test_a_bad_turn_stores_nothing(forest: Forest, options: dict[str, object], message: str) -> None:
    trajectory = begun(forest)
    with pytest.raises(InvalidInputError, match=message):
        forest.turn(trajectory, [3], **{"logprobs": [-0.5], **options})  # type: ignore[arg-type]
    assert forest.tokens(trajectory).tolist() == [1, 2]


def test_a_turn_is_its_parts() -> None:
    def grown(at_once: bool) -> Batch:
        forest = Forest()
        forest.add_group(0, "task")
        trajectory = begun(forest)
        blob = forest.add_blob(b"picture")
        sampled = {
            "logprobs": np.array([-0.5, -0.25], np.float32),
            "entropies": [0.5, 0.25],
            "policy_version": 3,
            "seed": 11,
            "temperature": 0.5,
            "top_p": 0.75,
            "top_k": 5,
            "finish_reason": "length",
            "trainable": [1, 0],
            "policy": 1,
        }
        paid = {"reward": 0.5, "rewards": [0.25, 0.25], "flags": 2, "truncated": True}
        if at_once:
            said = {"end_of_turn": [0], "observation": [5, 6], "state": b"room", "blobs": [blob]}
            forest.turn(trajectory, [3, 4], **sampled, **paid, **said)
        else:
            forest.append(trajectory, [3, 4], kind="action", **sampled)
            forest.step(trajectory, **paid)
            forest.append(trajectory, [0], kind="injected")
            forest.append(trajectory, [5, 6], kind="observation", state=b"room", blobs=[blob])
        forest.finish(trajectory)
        return forest.freeze()

    one, other = without_time(grown(True)), without_time(grown(False))
    assert all(mine.equals(theirs, null_equal=True) for mine, theirs in zip(one, other, strict=True))
