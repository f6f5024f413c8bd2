"""Non-columns, non-texts and numbers out of range are errors that name the argument; valid values pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from forests import grow

from agentrl_core import Forest, _core, advantage, group, keys, returns
from agentrl_core.advantage.relative_to_group import leave_one_out
from agentrl_core.exceptions import CorruptError, InvalidInputError
from agentrl_core.operators import packing
from agentrl_core.operators.keys import similar
from agentrl_core.operators.returns import n_step, optimal_token_baseline
from agentrl_core.operators.risk import tail_risk

HALF = "a\ud800"


def chat() -> tuple[Forest, int]:
    forest = Forest()
    forest.add_group(0, "task")
    return forest, forest.start(0, 0)


def turn(**options: object) -> object:
    forest, trajectory = chat()
    arguments = {"prompts": [[1, 2]], "outputs": [[3]], **options}
    return forest.ingest([trajectory], **arguments)


def row(**options: object) -> object:
    forest, trajectory = chat()
    arguments = {"tokens": [[1, 2]], "kind": "action", **options}
    return forest.append_many([trajectory], **arguments)


def imported(tokens: object, sampled: object) -> object:
    forest, trajectory = chat()
    return forest.append_chats([trajectory, trajectory], tokens, sampled)


def on(call: Callable[[Forest, int], object]) -> object:
    return call(*chat())


TWO = {"rewards": [1.0, 2.0], "sequence_ids": [0, 0], "gamma": 0.5}
SQUARE = np.zeros((2, 2), np.int32)

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    # Numbers out of range.
    "realign": (lambda: turn(realign=2**64), "realign is 18446744073709551616; give a whole number from 0"),
    "negative realign": (lambda: turn(realign=-1), "realign is -1; give a whole number from 0"),
    "bins": (
        lambda: packing.balanced([1, 2, 3], 2**63 - 1),
        "bins is 9223372036854775807: not enough",
    ),
    "many bins": (lambda: packing.balanced([1, 2, 3], 2**45), "bins is 35184372088832: not enough"),
    "shards": (
        lambda: grow(0)[0].plan([0], 100, shards=2**45),
        "shards is 35184372088832: not enough memory",
    ),
    # Rows that are not lists of values.
    "a matrix in a row": (
        lambda: imported([np.zeros(2, np.int32), SQUARE], [[0, 1]] * 2),
        r"tokens\[1\] has shape \(2, 2\)",
    ),
    "a matrix of marks": (
        lambda: imported([[1, 2]] * 2, [np.zeros(2, np.uint8), SQUARE]),
        r"sampled\[1\] has shape \(2, 2\)",
    ),
    "a number of tokens": (lambda: row(tokens=3), "tokens is int; give a column"),
    "ragged ends": (lambda: row(terminated=[[1], [1, 2]]), "terminated of type list is not a column"),
    "ends in words": (lambda: row(terminated=["yes"]), "terminated has dtype <U3; give whole numbers"),
    "kind of a list": (lambda: row(kind=[[1]]), r"kind\[0\] is \[1\]; use one of"),
    # Texts with a lone surrogate.
    "state": (
        lambda: on(lambda f, t: f.append(t, [1], kind="prompt", state=HALF)),
        r"state is 'a\\ud800', which is not Unicode",
    ),
    "state of a memory": (
        lambda: on(lambda f, t: f.rewrite(t, [1], state=HALF)),
        r"state is 'a\\ud800', which is not Unicode",
    ),
    "states": (lambda: row(state=[HALF]), r"state\[0\] is 'a\\ud800', which is not Unicode"),
    "states of turns": (lambda: turn(state=[HALF]), r"state\[0\] is 'a\\ud800', which is not Unicode"),
    "a number for a state": (lambda: row(state=[-1]), r"state\[0\] is -1; give text or bytes"),
    "vocabulary": (lambda: turn(vocabulary=["a", HALF]), r"vocabulary\[1\] is 'a\\ud800', which is not Unicode"),
    "task": (lambda: on(lambda f, _: f.add_group(1, HALF)), r"task_id is 'a\\ud800', which is not Unicode"),
    "reason": (lambda: on(lambda f, t: f.prune(t, HALF)), r"reason is 'a\\ud800', which is not Unicode"),
    "decision": (
        lambda: on(lambda f, t: f.log_decision("stop", t, in_round=0, reason=HALF)),
        r"reason is 'a\\ud800', which is",
    ),
    "components": (lambda: Forest(reward_components=[HALF]), r"reward_components is 'a\\ud800', which is not Unicode"),
    "estimator": (lambda: Forest(entropies=HALF), r"entropies is 'a\\ud800', which is not Unicode"),
    "column": (lambda: grow(0)[0].column(HALF, "draw"), r"name is 'a\\ud800', which is not Unicode"),
    "source": (lambda: grow(0)[0].with_recipe(HALF, {}), r"recipe is 'a\\ud800', which is not Unicode"),
    "texts": (lambda: similar([HALF], kind="minhash"), r"texts is 'a\\ud800', which is not Unicode"),
    "keys": (lambda: keys.dense([HALF]), r"ids is 'a\\ud800', which is not Unicode"),
    # Offsets of nothing, and memory without a valid buffer.
    **{
        f"offsets of {name}": (functools.partial(call, offsets=[]), "offsets is empty; give the start of each sequence")
        for name, call in {
            "discounted": lambda **given: returns.discounted([1.0], gamma=0.5, **given),
            "gae": lambda **given: returns.gae([1.0], [1.0], gamma=0.5, lam=1.0, **given),
            "n_step": lambda **given: n_step([1.0], [1.0], steps=1, gamma=0.5, **given),
            "a baseline": lambda **given: optimal_token_baseline([1.0], [1.0], [0], **given),
            "a baseline of nothing": lambda **given: optimal_token_baseline([], [], [], **given),
        }.items()
    },
    **{
        f"buffers of {type(value).__name__}": (
            lambda value=value: packing.tree_layout([0], [0, 1], buffers=value),
            f"buffers is {type(value).__name__}; give a PackBuffers",
        )
        for value in (np.array(2), 3, SimpleNamespace(take=1, next=2), SimpleNamespace(take=len))
    },
    # Lists and scalars instead of arrays and tables.
    "out of returns": (
        lambda: returns.discounted(**TWO, out=[0.0, 0.0]),
        r"out is list; give a NumPy array of shape \(2,\) and dtype float64",
    ),
    "out of gae": (
        lambda: returns.gae(**TWO, values=[1.0, 1.0], lam=1.0, out=3),
        r"out is int; give a NumPy array of shape \(2, 2\)",
    ),
    "out of a table": (
        lambda: group.normalise([[1.0, 2.0]], [0], out=[[0.0, 0.0]]),
        r"out is list; give a NumPy array of shape \(1, 2\)",
    ),
    "out of a column": (lambda: group.normalise([1.0], [0], out=[0.0]), "out is not a contiguous array of 1 values"),
    "summed": (
        lambda: packing.tree_layout([1, 2], [0, 2], summed=[1.0, 1.0]),
        "summed is list; give a dict of columns",
    ),
    "same": (lambda: packing.tree_layout([1, 2], [0, 2], same=2.0), "same is float; give a dict of columns"),
    "buffers": (lambda: packing.tree_layout([1, 2], [0, 2], buffers=[]), "buffers is list; give a PackBuffers"),
    "curve": (lambda: tail_risk([1.0], 0.1, 0.5, curve=[]), r"curve is \[\]; give a pair"),
    "half a curve": (lambda: tail_risk([1.0], 0.1, 0.5, curve=3.0), r"curve is 3.0; give a pair"),
    # Messages that name the value and a remedy.
    "unknown reward": (
        lambda: advantage.group_relative([1.0, float("nan")], [0, 0]),
        r"rewards\[1\] is nan, but must be finite; correct it, or leave the row out: valid=np.isfinite\(rewards\)",
    ),
    "unknown reward of one": (
        lambda: leave_one_out([np.inf, 1.0], [0, 0]),
        r"rewards\[0\] is inf, but must be",
    ),
    "lengths": (lambda: advantage.group_relative([1.0, 2.0], [0]), "group_ids has 1 rows but rewards has 2; give one"),
    "rewards in words": (
        lambda: advantage.group_relative(["1", "2"], [0, 0]),
        "rewards has dtype <U1; turn the texts into numbers first",
    ),
    "missing rewards": (
        lambda: advantage.group_relative([1.0, None], [0, 0]),
        r"rewards\[\d\] is .*; .* NaN in place",
    ),
    "scale": (lambda: advantage.group_relative([1.0], [0], scale="mad"), 'scale is \'mad\'; use "std" or "none"'),
    "expression": (
        lambda: advantage.group_relative(pl.col("reward"), [0]),
        r"rewards is a Polars expression .* pass the column: df\['x'\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_error_names_the_argument(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(InvalidInputError, match=message):
        call()


SCORES, GROUPS = [1.0, 0.5, 0.0, 2.0], [0, 0, 1, 1]


@pytest.mark.parametrize(
    "column",
    [
        torch.tensor(SCORES, dtype=torch.bfloat16),
        torch.tensor(SCORES, dtype=torch.bfloat16, requires_grad=True),
        np.array(SCORES, object),
        np.array([np.float32(score) for score in SCORES], object),
    ],
    ids=["bfloat16", "with a gradient", "objects", "objects of NumPy"],
)
def test_bfloat16_tensors_and_object_arrays_are_columns(column: object) -> None:
    expected = advantage.group_relative(SCORES, GROUPS)
    np.testing.assert_allclose(advantage.group_relative(column, GROUPS), expected, rtol=1e-6)
    batch = grow(0)[0]
    batch = batch.select_draws([0, 1, 2, 3]).with_columns("draw", score=column)
    assert batch.column("score", "draw").tolist() == SCORES


def test_objects_that_are_whole_numbers_or_texts_are_keys() -> None:
    assert keys.dense(np.array([7, 7, 9], object)).tolist() == [0, 0, 1]
    assert keys.dense(np.array(["a", "b", "a"], object)).tolist() == [0, 1, 0]


def test_the_repr_of_a_forest_lists_running_trajectories() -> None:
    forest = Forest(iteration=4)
    assert repr(forest) == "Forest(iteration 4: 0 groups)"
    for number in range(7):
        forest.add_group(number, "task")
        for member in range(number):
            forest.append(forest.start(number, member), [1], kind="prompt")
    assert forest.freeze().num_draws == 0
    assert repr(forest) == (
        "Forest(iteration 4: 7 groups; 21 trajectories run: 1 in group 1, 2 in group 2, 3 in group 3, 4 in group 4, "
        "5 in group 5, ...)"
    )


def test_errors_of_damaged_bytes_print_nothing_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    parts = [bytes(part) for part in grow(0)[0]._core.to_bytes()]
    rng = np.random.default_rng(0)
    contradictions = 0
    for _ in range(600):
        part = int(rng.integers(1, len(parts)))
        damaged = [bytearray(part) for part in parts]
        for at in rng.integers(0, len(parts[part]), 3):
            damaged[part][at] ^= 1 << int(rng.integers(8))
        try:
            _core.Batch.from_bytes([np.frombuffer(bytes(part), np.uint8) for part in damaged])
        except CorruptError as error:
            contradictions += "its parts contradict each other" in str(error)
        except InvalidInputError:
            pass
    assert contradictions > 0, "the Arrow crates make a panic of some of them"
    assert capfd.readouterr().err == ""
