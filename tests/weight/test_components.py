"""Denominators on ragged rows: their definitions, and equal numbers from a batch."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl_core import Forest, weight
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.weight.denominators import constant_denominator, sequence_mean, token_mean

LENGTHS = [3, 1, 0, 4]
VALID = [True, False, True, True]


def test_definitions() -> None:
    assert token_mean(LENGTHS, valid=VALID).tolist() == [1 / 7] * 3 + [0.0] + [1 / 7] * 4
    assert sequence_mean(LENGTHS, valid=VALID).tolist() == [1 / 6] * 3 + [0.0] + [1 / 8] * 4
    assert constant_denominator(LENGTHS, 20, valid=VALID).tolist() == [1 / 40] * 3 + [0.0] + [1 / 40] * 4


def test_nothing_trained_weighs_nothing() -> None:
    assert token_mean([]).tolist() == []
    assert sequence_mean([2], valid=[False]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("denominator", ["token_mean", "sequence_mean", "constant"])
def test_a_batch_gives_the_same(denominator: str) -> None:
    forest = Forest()
    forest.add_group(0, "task")
    lengths = [3, 1, 5]
    for member, length in enumerate(lengths):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(trajectory, list(range(length)), kind="action", logprobs=[-1.0] * length)
        forest.finish(trajectory, reward=1.0)
    valid = [True, True, False]
    options = {"constant": 7.0} if denominator == "constant" else {}
    batch = forest.freeze()
    expected = batch.token_weights(np.arange(3), denominator=denominator, valid=np.array(valid), **options)
    function = {"constant": constant_denominator}.get(denominator) or getattr(weight.denominators, denominator)
    weights = function(lengths, *options.values(), valid=valid)
    np.testing.assert_allclose(weights, expected, rtol=1e-15)


def test_turns_and_episodes_count_once() -> None:
    """Draw 0 has turns of 2 and 1 tokens, draw 1 one of 3; they are two agents' views of one episode. Draw 2 has 4."""
    forest = Forest()
    forest.add_group(0, "task")
    first = forest.start(0, 0)
    forest.append(first, [1], kind="prompt")
    forest.append(first, [2, 3], kind="action", logprobs=[-1.0] * 2)
    forest.append(first, [4], kind="observation")
    forest.append(first, [5], kind="action", logprobs=[-1.0])
    second = forest.start(0, 1, agent=1, episode=first)
    third = forest.start(0, 2)
    for trajectory, length in ((second, 3), (third, 4)):
        forest.append(trajectory, [6], kind="prompt")
        forest.append(trajectory, [7] * length, kind="action", logprobs=[-1.0] * length)
    for trajectory in (first, second, third):
        forest.finish(trajectory, reward=1.0)
    batch = forest.freeze()
    expected = {
        "turn_mean": [1 / 12] * 2 + [1 / 6] + [1 / 9] * 3 + [1 / 12] * 4,
        "step_mean": [1 / 8] * 2 + [1 / 4] + [1 / 12] * 3 + [1 / 16] * 4,
        "episode_mean": [1 / 12] * 6 + [1 / 8] * 4,
        "sequence_mean_sum": [1 / 3] * 6 + [1 / 4] * 4,
    }
    for denominator, weights in expected.items():
        np.testing.assert_allclose(batch.token_weights([0, 1, 2], denominator=denominator), weights, rtol=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: token_mean([1, -2]), r"lengths\[1\]=-2 is negative"),
        (lambda: token_mean([0.5]), r"lengths\[0\] is 0\.5; give whole numbers"),
        (lambda: sequence_mean([1], valid=[True, True]), "valid has 2 rows"),
        (lambda: constant_denominator([1], 0.0), "constant is 0; give a finite number above 0"),
    ],
)
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()
