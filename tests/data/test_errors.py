"""Wrong input: the class shows the remedy, the message names argument and value, and nothing is lost."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
import torch
from forests import grow
from small_world import SmallWorld

from agentrl_core import Batch, Collector, Forest, _core, exceptions, recipes
from agentrl_core.exceptions import AgentRLError, InvalidInputError, NotFoundError

ACT = {"kind": "action", "logprobs": [-1.0, -1.0]}


def forest_like_that() -> Forest:
    """Return another forest with the same groups."""
    forest = Forest()
    forest.add_group(0, "task")
    return forest


@pytest.fixture
def open_action() -> tuple[Forest, int]:
    """Return a trajectory t with the prompt [1, 2, 3] as node t and the open action [4, 5] as node t + 1."""
    forest = Forest()
    forest.add_group(0, "task")
    trunk = forest.start(0, 0)
    assert forest.append(trunk, [1, 2, 3], kind="prompt") == trunk
    assert forest.append(trunk, [4, 5], **ACT) == trunk + 1
    return forest, trunk


@pytest.fixture(scope="module")
def batch() -> Batch:
    return grow(0)[0]


FOREST = {
    "logprobs too few": (
        lambda f, t: f.append(t, [1, 2], kind="action", logprobs=[-1.0]),
        "logprobs has 1 values for 2 tokens",
    ),
    "entropies too many": (
        lambda f, t: f.append(t, [1, 2], **ACT, entropies=[1.0] * 3),
        "entropies has 3 values for 2 tokens",
    ),
    "trainable too few": (
        lambda f, t: f.append(t, [1, 2], **ACT, trainable=[True]),
        "trainable has 1 values for 2 tokens",
    ),
    "empty action": (
        lambda f, t: f.append(t, [], kind="action", logprobs=[]),
        "tokens is empty; give an action at least one",
    ),
    "empty prompt": (lambda f, t: f.append(t, [], kind="prompt"), "tokens is empty"),
    "NaN log-prob": (
        lambda f, t: f.append(t, [1, 2], kind="action", logprobs=[-1.0, math.nan]),
        r"logprobs\[1\] is NaN",
    ),
    "positive log-prob": (lambda f, t: f.append(t, [1], kind="action", logprobs=[0.5]), r"logprobs\[0\] is 0.5"),
    "infinite log-prob": (lambda f, t: f.append(t, [1], kind="action", logprobs=[-math.inf]), r"logprobs\[0\] is -inf"),
    "infinite entropy": (lambda f, t: f.append(t, [1, 2], **ACT, entropies=[1.0, math.inf]), r"entropies\[1\] is inf"),
    "log-prob of a prompt": (
        lambda f, t: f.append(t, [1], kind="prompt", logprobs=[-1.0]),
        "logprobs is given for kind Prompt",
    ),
    "a trained prompt": (
        lambda f, t: f.append(t, [1], kind="prompt", trainable=[1]),
        "trainable marks tokens of kind Prompt",
    ),
    "mask of 2": (lambda f, t: f.append(t, [1, 2], **ACT, trainable=[1, 2]), r"trainable\[1\] is 2; use 0 or 1"),
    "mask of -1": (
        lambda f, t: f.append(t, [1, 2], **ACT, trainable=[1, -1]),
        r"trainable\[1\] is -1; give a list of 0 and 1",
    ),
    "negative token": (lambda f, t: f.append(t, [1, -7], kind="prompt"), r"tokens\[1\] is -7"),
    "huge token": (
        lambda f, t: f.append(t, [2**31], kind="prompt"),
        r"tokens\[0\] is 2147483648; give token ids from 0 to 2\^31 - 1",
    ),
    "floats among tokens": (
        lambda f, t: f.append(t, [1, 1.5], kind="prompt"),
        r"tokens\[1\] is 1.5; give a list of ints",
    ),
    "nested log-probs": (
        lambda f, t: f.append(t, [1], kind="action", logprobs=[[-1.0]]),
        r"logprobs\[0\] is \[-1.0\]; give a list of floats",
    ),
    "float tokens": (
        lambda f, t: f.append(t, np.zeros(2), kind="prompt"),
        r"tokens is ndarray of dtype float64 and shape \(2,\)",
    ),
    "matrix of tokens": (
        lambda f, t: f.append(t, np.zeros((2, 2), np.int32), kind="prompt"),
        r"tokens is .* shape \(2, 2\)",
    ),
    "a number of tokens": (lambda f, t: f.append(t, np.array(3), kind="prompt"), r"tokens is .* shape \(\)"),
    "text for tokens": (lambda f, t: f.append(t, "abc", kind="prompt"), "tokens is str"),
    "text for log-probs": (lambda f, t: f.append(t, [1], kind="action", logprobs="a"), "logprobs is str"),
    "a tensor for tokens": (
        lambda f, t: f.append(t, torch.zeros(2, 2), kind="prompt"),
        "tokens is Tensor of dtype torch.float32",
    ),
    "kind": (lambda f, t: f.append(t, [1], kind="tool"), 'kind is "tool"; use "prompt"'),
    "finish reason": (
        lambda f, t: f.append(t, [1, 2], **ACT, finish_reason="eos"),
        'finish_reason is "eos"; use "stop"',
    ),
    "temperature": (lambda f, t: f.append(t, [1, 2], **ACT, temperature=math.nan), "temperature is NaN"),
    "negative temperature": (lambda f, t: f.append(t, [1, 2], **ACT, temperature=-0.5), "temperature is -0.5"),
    "top_p": (lambda f, t: f.append(t, [1, 2], **ACT, temperature=1.0, top_p=1.5), "top_p is 1.5"),
    "top_k": (lambda f, t: f.append(t, [1, 2], **ACT, temperature=1.0, top_k=-1), "top_k is -1"),
    "huge handle": (
        lambda f, _: f.append(2**63, [1], kind="prompt"),
        "trajectory is 9223372036854775808; give a whole number",
    ),
    "fractional handle": (lambda f, _: f.tokens(0.5), "trajectory is 0.5; give a whole number"),
    "negative group": (lambda f, _: f.add_group(-1, "task"), "group is -1; give a whole number from 0 to"),
    "huge group": (lambda f, _: f.add_group(2**31, "task"), "group is 2147483648; give a number of at most 2147483647"),
    "huger group": (lambda f, _: f.add_group(2**40, "task"), "group is 1099511627776"),
    "group again": (lambda f, _: f.add_group(0, "task"), "group 0 exists already"),
    "negative member": (lambda f, _: f.start(0, -1), "member is -1"),
    "member again": (lambda f, _: f.start(0, 0), "member 0 of group 0 was started already"),
    "fork too far": (
        lambda f, t: f.fork(t, node=t + 1, end=3),
        r"end is 3, but trajectory \d+ uses 2 tokens of node \d+",
    ),
    "fork at -1": (lambda f, t: f.fork(t, node=t + 1, end=-1), "end is -1"),
    "fork without node": (lambda f, t: f.fork(t, end=1), "end is given without node"),
    "flags": (lambda f, t: f.step(t, flags=-1), "flags is -1"),
    "infinite reward": (lambda f, t: f.step(t, reward=math.inf), "reward is inf"),
    "infinite component": (lambda f, t: f.finish(t, rewards=[0.0, -math.inf]), r"rewards\[1\] is infinite"),
    "status": (lambda f, t: f.finish(t, status="done"), 'status is "done"; use "finished"'),
    "info": (lambda f, t: f.finish(t, info={"a": object()}), "info cannot be saved as JSON: Object of type object"),
    "seed": (lambda *_: Forest(seed=-1), "seed is -1; give a whole number from 0"),
    "iteration": (lambda *_: Forest(iteration=2**70), f"iteration is {2**70}"),
}


@pytest.mark.parametrize(("call", "message"), FOREST.values(), ids=FOREST)
def test_a_rejected_call_leaves_a_forest_unchanged(
    open_action: tuple[Forest, int], call: Callable[[Forest, int], object], message: str
) -> None:
    forest, trunk = open_action
    with pytest.raises(InvalidInputError, match=message):
        call(forest, trunk)
    assert forest.tokens(trunk).tolist() == [1, 2, 3, 4, 5]
    forest.step(trunk, reward=1.0)
    forest.finish(trunk, reward=1.0)
    batch = forest.freeze()
    assert (len(batch.nodes), len(batch.steps), batch.num_draws) == (2, 1, 1)


MISSING = {
    "trajectory of another forest": (
        lambda f, _: f.tokens(forest_like_that().start(0, 1)),
        r"trajectory \d+ is not in the forest: .* the handle is of another forest; use a handle that this",
    ),
    "node of another forest": (
        lambda f, t: f.fork(t, node=forest_like_that().start(0, 1)),
        "node .* is not on the path",
    ),
    "trajectory": (lambda f, _: f.tokens(77), "trajectory 77 is not in the forest"),
    "negative trajectory": (lambda f, _: f.append(-1, [1], kind="prompt"), "trajectory -1 is not in the forest"),
    "huge trajectory": (lambda f, _: f.finish(2**62), f"trajectory {2**62} is not in the forest"),
    "node": (lambda f, t: f.fork(t, node=99), "node 99 is not on the path of trajectory "),
    "negative node": (lambda f, t: f.fork(t, node=-(2**63)), f"node {-(2**63)} is not on the path"),
    "group": (lambda f, _: f.start(5, 0), r"group 5 is not in the forest \(never added, or frozen\); add it"),
}


@pytest.mark.parametrize(("call", "message"), MISSING.values(), ids=MISSING)
def test_unknown_ids_in_a_forest_raise_not_found_error(
    open_action: tuple[Forest, int], call: Callable[[Forest, int], object], message: str
) -> None:
    forest, trunk = open_action
    with pytest.raises(NotFoundError, match=message) as caught:
        call(forest, trunk)
    assert isinstance(caught.value, LookupError)


def test_ended_trajectories_stay_ended(open_action: tuple[Forest, int]) -> None:
    forest, trunk = open_action
    branch = forest.fork(trunk, node=trunk)
    with pytest.raises(InvalidInputError, match=f"trajectory {branch} ends without an action"):
        forest.finish(branch)
    with pytest.raises(InvalidInputError, match=f"trajectory {branch} has no open action to close"):
        forest.step(branch)
    forest.prune(branch, "dull")
    with pytest.raises(InvalidInputError, match=rf"trajectory {branch} has ended \(Pruned\); fork it"):
        forest.append(branch, [1], kind="prompt")
    again = forest.fork(branch)
    assert forest.tokens(again).tolist() == forest.tokens(branch).tolist()
    forest.finish(again, status="aborted")
    forest.finish(trunk)
    for call in (
        lambda: forest.append(trunk, [1], kind="prompt"),
        lambda: forest.step(trunk),
        lambda: forest.finish(trunk),
    ):
        with pytest.raises(InvalidInputError, match=r"trajectory \d+ has ended \(Finished\); fork it"):
            call()
    forest.freeze()
    with pytest.raises(NotFoundError, match=r"trajectory \d+ is not in the forest: its group was frozen, or"):
        forest.tokens(trunk)


BATCH = {
    "level": (lambda b: b.column("reward", "tokens"), 'level is "tokens"; use "draw", "step"'),
    "level of new columns": (lambda b: b.with_columns("row", a=[1.0]), 'level is "row"'),
    "offsets of draws": (lambda b: b.offsets("draw"), 'level is "draw", which has no level above it'),
    "keys of stored tokens": (lambda b: b.keys("group_id", "node_token"), 'level is "node_token"; use "draw"'),
    "keys of floats": (lambda b: b.keys("probability", "draw"), 'column "probability" has nulls'),
    "keys of computed floats": (
        lambda b: b.with_columns("draw", a=np.zeros(b.num_draws)).keys("a", "draw"),
        "contains floats",
    ),
    "text as numbers": (lambda b: b.column("task_id", "draw"), 'column "task_id" contains Utf8, not numbers'),
    "unknown integers": (lambda b: b.column("parent_trajectory", "draw"), 'column "parent_trajectory" is unknown'),
    "too short": (
        lambda b: b.with_columns("draw", a=[1.0]),
        r'column "a" has 1 values, but level "draw" has \d+ rows',
    ),
    "a scalar": (lambda b: b.with_columns("draw", a=1.0), "a is float; give a one-dimensional column"),
    "a matrix": (lambda b: b.with_columns("draw", a=np.zeros((2, 2))), r"a has shape \(2, 2\)"),
    "texts": (lambda b: b.with_columns("draw", a=["x"] * b.num_draws), "a is ndarray of dtype <U1"),
    "complex": (lambda b: b.with_columns("draw", a=np.zeros(b.num_draws, complex)), "a is ndarray of dtype complex128"),
    "half floats": (
        lambda b: b.with_columns("draw", a=np.zeros(b.num_draws, np.float16)),
        "a is ndarray of dtype float16",
    ),
    "a column of ids": (lambda b: b.with_columns("draw", draw_id=np.zeros(b.num_draws)), 'column "draw_id" is a key'),
    "negative draw": (lambda b: b.select_draws([0, -1]), r"indices\[1\] is -1, but the batch has \d+ draws"),
    "draw too large": (lambda b: b.select_draws([99]), r"indices\[0\] is 99"),
    "draw twice": (lambda b: b.select_draws([0, 1, 0]), r"indices\[2\] is 0, which is given twice; give each"),
    "a mask of draws": (lambda b: b.select_draws(np.ones(b.num_draws, bool)), "indices has dtype bool"),
    "fractional draws": (lambda b: b.plan([0.7], 100), r"draws\[0\] is 0\.7"),
    "planned twice": (lambda b: b.plan([1, 1], 100), r"draws\[1\] is 1, which is given twice"),
    "plan of -1": (lambda b: b.plan([-1], 100), r"draws\[0\] is -1"),
    "no room": (lambda b: b.plan([0], 0), "max_tokens is 0, but draw 0 has a sequence of"),
    "negative room": (lambda b: b.plan([0], -1), "max_tokens is -1; give a whole number from 0"),
    "huge room": (lambda b: b.plan([0], 2**70), f"max_tokens is {2**70}"),
    "weights of no draw": (lambda b: b.token_weights([10**6]), r"draws\[0\] is 1000000"),
    "weights of a draw twice": (lambda b: b.token_weights([2, 2]), r"draws\[1\] is 2, which is given twice"),
    "short mask": (lambda b: b.token_weights([0], valid=[True]), r"valid has 1 values for \d+ draws"),
    "mask of floats": (lambda b: b.token_weights([0], valid=[0.5]), "valid has dtype float64; give booleans"),
    "denominator": (lambda b: b.token_weights([0], denominator="mean"), 'denominator is "mean"; use "token_mean"'),
    "no constant": (lambda b: b.token_weights([0], denominator="constant"), "constant is missing"),
    "constant of 0": (lambda b: b.token_weights([0], denominator="constant", constant=0.0), "constant is 0"),
    "constant too many": (lambda b: b.token_weights([0], constant=2.0), "constant is 2"),
    "shared": (lambda b: b.token_weights([0], shared="both"), 'shared is "both"; use "each"'),
    "options": (lambda b: b.with_recipe("mine", {"a": {1}}), "options cannot be saved as JSON"),
}


@pytest.mark.parametrize(("call", "message"), BATCH.values(), ids=BATCH)
def test_a_batch_refuses(batch: Batch, call: Callable[[Batch], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call(batch)


def test_a_column_that_is_not_there_is_not_found(batch: Batch) -> None:
    result = batch.with_columns("draw", score=np.zeros(batch.num_draws)).with_columns(
        "token", weight=batch.token_weights([0])
    )
    for name, level in [("advantage", "draw"), ("advantage", "token"), ("weight", "step"), ("score", "node_token")]:
        assert not result.has(name, level)
        message = rf'no column "{name}" at level "{level}" \(computed so far: \["score", "weight"\]\)'
        with pytest.raises(NotFoundError, match=message):
            result.column(name, level)
    with pytest.raises(NotFoundError, match='no column "nothing"'):
        batch.keys("nothing", "token")


@pytest.mark.parametrize("parts", [[], [b"nothing"], [b""] * 5, [b"ARROW1\0\0"] * 6])
def test_bytes_that_are_not_a_batch_raise_corrupt_error(parts: list[bytes]) -> None:
    with pytest.raises(exceptions.CorruptError, match=r"a header and 6 tables|is not the header of a batch"):
        _core.Batch.from_bytes([np.frombuffer(part, np.uint8) for part in parts])


def test_bytes_that_are_cut_are_corrupt(batch: Batch) -> None:
    parts = batch._core.to_bytes()
    for missing in (1, len(parts[1]) // 2):
        with pytest.raises(exceptions.CorruptError, match="part of a batch is not an Arrow file"):
            _core.Batch.from_bytes([parts[0], parts[1][:-missing], *parts[2:]])
        with pytest.raises(exceptions.CorruptError, match="is not the header of a batch"):
            _core.Batch.from_bytes([parts[0][: len(parts[0]) // 2], *parts[1:]])
    with pytest.raises(AgentRLError, match=r'table nodes has ".*" \(.*\) as column \d+; give "'):
        _core.Batch.from_bytes([parts[0], parts[2], *parts[2:]])


def test_rewards_that_are_not_known_neither_vote_nor_train() -> None:
    forest = Forest()
    for group, rewards in enumerate([[1.0, math.nan, 0.0], [None, 1.0], [2.0], [3.0, 3.0]]):
        forest.add_group(group, f"task {group}")
        for member, reward in enumerate(rewards):
            trajectory = forest.start(group, member)
            forest.append(trajectory, [1, 2], kind="prompt")
            forest.append(trajectory, [3, 4], **ACT)
            forest.step(trajectory, reward=math.nan if reward is None else reward)
            forest.finish(trajectory, reward=reward)
    batch = recipes.GRPO.reward(forest.freeze())
    for recipe in (recipes.GRPO, recipes.RLOO):
        advantage = recipe.credit(batch).column("advantage", "draw")
        assert np.isfinite(advantage).all()
        # Unknown, alone in its group, or equal to all others: nothing to learn.
        assert np.flatnonzero(advantage).tolist() == [0, 2]
        assert advantage[0] == -advantage[2] > 0
    valid = np.isfinite(batch.column("score", "draw"))
    weights = batch.token_weights(np.arange(batch.num_draws), valid=valid)
    assert weights.reshape(-1, 2).sum(axis=1).tolist() == [1 / 6, 0, 1 / 6, 0, 1 / 6, 1 / 6, 1 / 6, 1 / 6]


CLASSES = [getattr(exceptions, name) for name in vars(exceptions) if name.endswith("Error")]


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_pickle(kind: type[AgentRLError]) -> None:
    error = kind("reward is inf; give a finite number")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.args == error.args
    assert issubclass(kind, AgentRLError)


def test_errors_of_the_core_pickle(open_action: tuple[Forest, int]) -> None:
    forest, trunk = open_action
    for call in (lambda: forest.append(trunk, [], kind="prompt"), lambda: forest.tokens(77)):
        with pytest.raises(AgentRLError) as caught:
            call()
        again = pickle.loads(pickle.dumps(caught.value))
        assert (type(again), str(again)) == (type(caught.value), str(caught.value))


def test_a_collector_needs_work_to_do() -> None:
    world = SmallWorld()
    for tasks, group_size in [(0, 4), (4, 0), (-1, 1)]:
        collect = Collector(world, world, recipes.GRPO)
        with pytest.raises(InvalidInputError, match=r"collect: (tasks|group_size)=(0|-1); give a whole number"):
            collect(tasks=tasks, group_size=group_size)


def test_a_message_quotes_the_ends_of_a_long_word() -> None:
    error = InvalidInputError(f"kind is {'y' * 900}; give one of action, tool")
    assert str(error) == f"kind is {'y' * 80}…(900 characters)…{'y' * 40}; give one of action, tool"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(exceptions.StoreError("path " + "z" * 399)) == "path " + "z" * 399


def test_a_decision_of_an_unknown_score_has_none() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    path = forest.start(0, 0)
    forest.append(path, [1], kind="prompt")
    forest.append(path, [2, 3], **ACT)
    forest.log_decision("stop", path, in_round=0, score=math.nan)
    forest.log_decision("stop", path, in_round=1, score=10**400)
    forest.finish(path)
    assert pl.DataFrame(forest.freeze().decisions)["score"].to_list() == [None, math.inf]
