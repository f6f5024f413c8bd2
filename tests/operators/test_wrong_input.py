"""Unusual columns work like plain ones; each wrong one raises an error that names the argument and its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agentrl_core import advantage, group, keys, returns
from agentrl_core.advantage.relative_to_group import leave_one_out
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import filters, tree
from agentrl_core.operators.group.baseline import decayed_beta, ema_mean, running_moments, shrunk_mean, window_quantile
from agentrl_core.operators.group.distributed import PartialStatistics
from agentrl_core.operators.group_comparison import top_gap, win_rates
from agentrl_core.operators.keys import history, similar
from agentrl_core.operators.process_rewards import checklist, implicit_rewards, information_gain
from agentrl_core.operators.returns import n_step, optimal_token_baseline
from agentrl_core.operators.risk import tail_risk
from agentrl_core.operators.row_selection import above_quantile
from agentrl_core.operators.success_distance import success_distance
from agentrl_core.operators.votes import answer_clusters
from agentrl_core.weight.denominators import sequence_mean, token_mean, turn_mean

SCORES = np.array([1.0, 0.0, 0.5, 0.25, 0.75, 0.125])
GROUPS = np.array([3, 3, 3, 8, 8, 8])
FAR = [1e308, -1e308]
HUGE = 2**40


def read_only(column: np.ndarray) -> np.ndarray:
    column = column.copy()
    column.setflags(write=False)
    return column


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "read-only": read_only,
    "strided": lambda column: np.repeat(column, 2)[::2],
    "backwards": lambda column: column[::-1].copy()[::-1],
    "big-endian": lambda column: column.astype(column.dtype.newbyteorder(">")),
    "unaligned": lambda column: np.frombuffer(b"x" + column.tobytes(), np.uint8)[1:].view(column.dtype),
    "a tuple": lambda column: tuple(column.tolist()),
    "nothing masked": lambda column: np.ma.masked_array(column, mask=np.zeros(len(column), np.bool_)),
}
CALLS: dict[str, Callable[..., Any]] = {
    "keys.dense": lambda _, groups: keys.dense(groups),
    "group.normalise": lambda scores, groups: group.normalise(
        scores, groups, voter_ids=groups, scale_ids=groups, weights=scores
    ),
    "group.sums": group.sums,
    "returns.discounted": lambda scores, groups: returns.discounted(scores, groups, gamma=0.5),
    "tree.build": lambda _, groups: tree.build(groups, [0, 2, 6]).nodes,
    "reward.top_gap": top_gap,
    "weight.above_quantile": lambda scores, groups: above_quantile(scores, groups, q=0.5),
    "weight.turn_mean": lambda _, groups: turn_mean(groups, groups),
    "filters.top_groups": lambda scores, groups: filters.top_groups(scores, groups, 0.5),
    "advantage.leave_one_out": leave_one_out,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CALLS)
def test_the_form_of_a_column_changes_nothing(name: str, form: str) -> None:
    call, shape = CALLS[name], FORMS[form]
    np.testing.assert_array_equal(call(shape(SCORES), shape(GROUPS)), call(SCORES, GROUPS))


def test_masked_numbers_are_missing() -> None:
    masked = np.ma.masked_array(SCORES, mask=SCORES == 0.5)
    with pytest.raises(InvalidInputError, match=r"values\[2\] is NaN"):
        group.normalise(masked, GROUPS)
    result = group.normalise(masked, GROUPS, valid=SCORES != 0.5)
    assert result.tolist() == group.normalise(SCORES, GROUPS, valid=SCORES != 0.5).tolist()
    with pytest.raises(InvalidInputError, match="ids has dtype float64"):
        keys.dense(np.ma.masked_array(GROUPS, mask=SCORES == 0.5))
    with pytest.raises(InvalidInputError, match=r"ids\[\d\] is masked, and dtype <U1 has no NaN"):
        keys.dense(np.ma.masked_array(["a", "b"], mask=[True, False]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # Numbers that another type would silently convert to others.
        (
            lambda: tree.peers(np.full(2, 2**64 - 1, np.uint64), kind="depth"),
            r"parents\[\d\] is 18446744073709551615, which does not fit int64",
        ),
        (lambda: tree.fuse([-1], [2**32], [1.0]), r"nodes\[0\] is 4294967296; give the row of a node"),
        (lambda: tree.ancestor_relative([-1, 0], [1, -1], [1.0, 0.0]), r"nodes\[1\] is -1; give the row of a node"),
        (lambda: success_distance(np.ones((1, 2)) * 1j, [True], [0]), "embeddings has dtype complex128"),
        (
            lambda: checklist([[0.3]], [[0]], [0, 1]),
            "satisfied has dtype float64; give booleans, or the integers 0 and 1",
        ),
        (lambda: checklist([[True]], [[2]], [0, 1]), r"dependencies\[0, 0\] is 2; give booleans, or 0 and 1"),
        # Required columns.
        (lambda: success_distance([[1.0]], None, [0]), "success is None; give booleans"),
        (lambda: filters.round_rows(None, 1), "keep is None; give booleans"),
        (lambda: answer_clusters(None, [0]), "answers is NoneType; give a list of texts"),
        (lambda: answer_clusters("yes", [0, 0, 0]), "answers is str; give a list of texts"),
        # Rows that end before the values do.
        (lambda: information_gain([-1.0, -1.0], [0, 1], [-1.0]), "offsets go from 0 to 1, but answer_logprobs"),
        # Results that are too large.
        (
            lambda: tree.ancestor_relative([-1, 0, 0, 0], [1, 2, 3], [1.7e308, *[-1.7e308] * 2]),
            r"the result at \(0,\) is too large for float64",
        ),
        (lambda: top_gap(FAR, [0, 0]), r"the result at \(0,\) is too large for float64"),
        (lambda: tail_risk(FAR, 1e308, 1e308), "too large for float64"),
        (lambda: implicit_rewards(np.float32([3e38]), [-3e38], beta=1.0), "too large for float32"),
        (
            lambda: optimal_token_baseline(SCORES, FAR * 3, [0, 0], offsets=[0, 3, 6]),
            "too large for float64",
        ),
        # Counts.
        (lambda: group.normalise([1.0], [0], ddof=-1), "ddof is -1; give a whole number from 0 to 4294967295"),
        (lambda: group.normalise([1.0], [0], votes_at_least=-1), "votes_at_least is -1; give a whole number from 0"),
        (lambda: group.statistics([1.0], [0], ddof=2**70), "ddof is 1180591620717411303424; give a whole number"),
        (lambda: PartialStatistics.of([1.0], [0], -1), "groups is -1; give a whole number"),
        (lambda: n_step([1.0], [1.0], [0], gamma=1.0, steps=-1), "steps is -1; give a whole number"),
        (lambda: advantage.gigpo([1.0], [0], [0], [0], [0], [1.0], ddof=-1), "ddof is -1; give a whole number"),
        (lambda: filters.group_band([1.0], [0], members_at_least=-1), "members_at_least is -1; give a whole number"),
        (lambda: filters.top_groups([1.0], [0], 0.5, ddof=1.5), "ddof is 1.5; give a whole number"),
        (lambda: filters.round_rows([True], -1), "multiple is -1; give a whole number"),
        (lambda: history([0], [0], [0], levels=1.5), "levels is 1.5; give a whole number"),
        (lambda: similar(["a"], kind="minhash", words=-1), "words is -1; give a whole number"),
        # Sizes for which there is no memory.
        (
            lambda: history([0], [0], [0], levels=2 * HUGE),
            "levels is 2199023255552: not enough",
        ),
        (
            lambda: similar(["a"], kind="minhash", hashes=HUGE * 64, bands=1),
            "hashes is 70368744177664: not",
        ),
        (lambda: win_rates([0], [1], [1.0], HUGE), "count is 1099511627776: not enough"),
        (
            lambda: PartialStatistics.of([1.0], [0], HUGE),
            "groups is 1099511627776: not enough memory",
        ),
        (
            lambda: token_mean([HUGE, HUGE]),
            r"lengths add up to 2199023255552 tokens, too many for the memory",
        ),
        (lambda: sequence_mean([2**62, 2**62]), r"lengths add up to 9223372036854775808 tokens"),
        # Searches that would not end.
        # States.
        (lambda: ema_mean(None, [1.0], [0], decay=0.5), "state is None; give what the last call returned, or {}"),
        (lambda: ema_mean({"0": np.nan}, [1.0], [0], decay=0.5), r"state\['0'\] is nan; give what the last call"),
        (lambda: ema_mean({}, [1.0], [0], decay=0.5, initial=np.inf), "initial is inf; give a finite number"),
        (lambda: running_moments({"0": [1.0]}, [1.0], [0]), r"state\['0'\] is \[1.0\]; give what the last call"),
        (
            lambda: decayed_beta({"0": "x"}, [1.0], [0], decay=0.5),
            r"state\['0'\] is 'x'; give what",
        ),
        (lambda: decayed_beta({}, [1.0], [0], decay=0.5, initial=None), "initial is None; give a finite number"),
        (
            lambda: window_quantile([3], [1.0], capacity=2),
            r"state is \[3\]; give the second value that the last call returned",
        ),
        (
            lambda: shrunk_mean([1.0], [0], [np.nan], variance=1.0),
            r"prior\[0\] is NaN, but must be finite; correct it",
        ),
    ],
)
def test_invalid_arguments_are_named_in_the_error(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


def test_quantiles_of_distant_numbers_do_not_overflow() -> None:
    assert group.quantile(FAR, [0, 0], 0.5).tolist() == [0.0]
    assert group.quantile(FAR, [0, 0], 0.75).tolist() == [5e307]


def test_a_prior_may_be_far_away() -> None:
    assert shrunk_mean([1.0, 1.0], [0, 0], [1e200, 1e200], variance=1.0).tolist() == [1.0, 1.0]
    prior = [0.5, 0.5, np.nan]
    result = shrunk_mean([1.0, 0.0, 9.0], [0, 0, 0], prior, variance=0.25, valid=[True, True, False])
    assert result[:2].tolist() == [0.5, 0.5]


def test_an_initial_value_may_be_whole() -> None:
    assert decayed_beta({}, [0.5], [0], decay=0.5, initial=1)[0].tolist() == [1.0]
