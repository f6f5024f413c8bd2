"""Returns: the same numbers in every form of the sequences, and a clear error for each wrong input."""

import numpy as np
import pytest

from agentrl_core import keys, returns
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators.returns import n_step, optimal_token_baseline, v_trace

RNG = np.random.default_rng(0)
SHAPE = (5, 12)
REWARDS, VALUES, RATIOS, LATER = RNG.normal(size=(4, *SHAPE))
MASK, ENDS = RNG.random((2, *SHAPE)) < [[[0.7]], [[0.1]]]
OPTIONS = {"mask": MASK, "ends": ENDS, "bootstrap": LATER}
FUNCTIONS = {
    "discounted": lambda columns, **rows: returns.discounted(columns[0], gamma=0.9, **rows),
    "gae": lambda columns, **rows: returns.gae(*columns[:2], gamma=0.9, lam=0.8, **rows),
    "v_trace": lambda columns, **rows: v_trace(*columns, gamma=0.9, rho_at_most=1.1, **rows),
    "n_step": lambda columns, **rows: n_step(*columns[:2], gamma=0.9, steps=3, **rows),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tables_offsets_and_interleaved_ids_give_the_same(name: str) -> None:
    function = FUNCTIONS[name]
    columns = [REWARDS, VALUES, RATIOS]
    expected = np.asarray(function(columns, **OPTIONS))
    flat = {option: column.ravel() for option, column in OPTIONS.items()}
    result = function([column.ravel() for column in columns], offsets=np.arange(6) * SHAPE[1], **flat)
    np.testing.assert_array_equal(np.asarray(result), expected.reshape(np.asarray(result).shape))
    # Time-major: the turns of five agents one after another.
    turned = {option: column.T.ravel() for option, column in OPTIONS.items()}
    ids = keys.composite(np.tile(np.arange(5), SHAPE[1]), np.zeros(60, np.int64))
    result = np.asarray(function([column.T.ravel() for column in columns], sequence_ids=ids, **turned))
    back = result.reshape(*result.shape[:-1], SHAPE[1], SHAPE[0]).swapaxes(-1, -2)
    np.testing.assert_array_equal(back, expected)


def test_cutting_a_trajectory_into_rows_changes_nothing() -> None:
    """Two rows of one episode; the value after the first row is that of the second row's first token."""
    uncut = returns.gae(REWARDS[:1], VALUES[:1], gamma=0.9, lam=1.0)[1][0]
    later = np.zeros((1, 7))
    later[0, -1] = uncut[7]
    first = returns.gae(REWARDS[:1, :7], VALUES[:1, :7], gamma=0.9, lam=1.0, bootstrap=later)[1][0]
    second = returns.gae(REWARDS[:1, 7:], VALUES[:1, 7:], gamma=0.9, lam=1.0)[1][0]
    np.testing.assert_allclose(np.concatenate([first, second]), uncut, atol=1e-12)


def test_types_and_out() -> None:
    single = REWARDS.astype(np.float32)
    assert returns.discounted(single, gamma=1.0).dtype == np.float32
    assert returns.gae(single, VALUES, gamma=1.0, lam=1.0)[0].dtype == np.float64
    out = np.empty((2, *SHAPE), dtype=np.float32)
    advantages, targets = returns.gae(single, single, gamma=1.0, lam=1.0, out=out)
    np.testing.assert_array_equal(out, np.stack([advantages, targets]))
    assert np.shares_memory(out, advantages)
    assert returns.discounted(np.zeros(0), sequence_ids=[], gamma=1.0).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: returns.discounted([1.0], gamma=1.0), "rewards has no sequences; give sequence_ids, offsets"),
        (lambda: returns.discounted(REWARDS, [1] * 5, gamma=1.0), "sequence_ids is given, .*rewards already separate"),
        (lambda: returns.discounted([1.0], [1], gamma=2.0), "gamma is 2; give a number from 0 to 1"),
        (lambda: returns.discounted([1.0], offsets=[0, 2], gamma=1.0), "offsets range from 0 to 2"),
        (lambda: returns.discounted([np.nan], [1], gamma=1.0), r"rewards\[0\] is NaN"),
        (lambda: returns.gae(REWARDS, VALUES[:2], gamma=1.0, lam=1.0), r"values has shape \(2, 12\)"),
        (lambda: returns.gae(REWARDS, VALUES, gamma=1.0, lam=1.0, mask=REWARDS), "mask has dtype float64"),
        (lambda: returns.gae(REWARDS, VALUES, gamma=1.0, lam=1.0, out=REWARDS), "out has shape"),
        (lambda: n_step([1.0], [1.0], [1], gamma=1.0, steps=0), "steps is 0; give 1 or more"),
        (lambda: v_trace([1.0], [1.0], [1.0], [1], gamma=1.0, rho_at_most=-1.0), "rho_at_most is -1"),
        (lambda: optimal_token_baseline(REWARDS, VALUES, [1]), "group_ids has 1 rows"),
        (lambda: optimal_token_baseline(REWARDS, VALUES, [1] * 5, align="left"), 'align is "left"'),
    ],
)
def test_invalid_arguments_are_named_in_the_error(call: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()
