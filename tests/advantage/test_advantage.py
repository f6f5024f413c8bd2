"""Compare advantages with verl's estimators and a naive reference, for every kind of input column."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentrl_core import advantage
from agentrl_core.advantage.relative_to_group import leave_one_out
from agentrl_core.exceptions import InvalidInputError, RecipeError

REWARDS = [1.0, 0.0, 0.5, 0.25, 2.0, 2.0]
GROUPS = [3, 3, 7, 7, 7, 9]
NAMES = ["three", "three", "seven", "seven", "seven", "nine"]


def ragged(seed: int, largest: int = 9) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return shuffled groups of 1 to `largest` rewards, one of them constant."""
    rng = np.random.default_rng(seed)
    sizes = [1, *rng.integers(1, largest + 1, size=20)]
    groups = np.repeat(rng.permutation(1000)[: len(sizes)], sizes)
    rewards = rng.normal(size=len(groups)).round(2)
    rewards[groups == groups[-1]] = 0.3
    order = rng.permutation(len(groups))
    return rewards[order], groups[order]


def verl(estimator: str, rewards: NDArray[np.float64], groups: NDArray[np.int64], **options: object) -> NDArray:
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is installed by `make test`")
    scores = torch.from_numpy(rewards)[:, None].clone()
    function = core_algos.get_adv_estimator_fn(estimator)
    return function(scores, torch.ones_like(scores), index=groups, **options)[0][:, 0].numpy()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", ["std", "none"])
def test_group_relative_equals_verl(scale: str, seed: int) -> None:
    rewards, groups = ragged(seed)
    expected = verl("grpo", rewards, groups, norm_adv_by_std_in_grpo=scale == "std")
    advantages = advantage.group_relative(rewards, groups, scale=scale, singleton="raw")
    np.testing.assert_allclose(advantages, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_leave_one_out_equals_verl(seed: int) -> None:
    rewards, groups = ragged(seed)
    advantages = leave_one_out(rewards, groups, singleton="raw")
    np.testing.assert_allclose(advantages, verl("rloo", rewards, groups), rtol=0, atol=1e-6)


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.integers(0, 4), st.booleans()), max_size=40),
    st.sampled_from([0, 1]),
)
def test_group_relative_equals_its_formula(rows: list[tuple[float, int, bool]], ddof: int) -> None:
    rewards = np.array([row[0] for row in rows], dtype=np.float64)
    groups = np.array([row[1] for row in rows], dtype=np.int64)
    valid = np.array([row[2] for row in rows], dtype=np.bool_)
    expected = np.zeros(len(rows))
    alone = np.zeros(len(rows))
    for group in set(groups[valid].tolist()):
        members = (groups == group) & valid
        values = rewards[members]
        if len(values) > 1:
            expected[members] = (values - values.mean()) / (values.std(ddof=ddof) + 1e-3)
            alone[members] = [value - np.delete(values, i).mean() for i, value in enumerate(values)]
    advantages = advantage.group_relative(rewards, groups, ddof=ddof, eps=1e-3, valid=valid)
    np.testing.assert_allclose(advantages, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(leave_one_out(rewards, groups, valid=valid), alone, rtol=0, atol=1e-6)


def test_equal_rewards_and_a_group_of_one_give_exactly_zero() -> None:
    advantages = advantage.group_relative([0.1, 0.1, 0.1, 5.0], [1, 1, 1, 2])
    assert advantages.tolist() == [0.0, 0.0, 0.0, 0.0]
    assert leave_one_out([0.5, 0.5, 5.0], [1, 1, 2]).tolist() == [0.0, 0.0, 0.0]


COLUMNS = {
    "list": (REWARDS, GROUPS),
    "names": (REWARDS, NAMES),
    "bytes": (REWARDS, [name.encode() for name in NAMES]),
    "numpy": (np.array(REWARDS), np.array(GROUPS, dtype=np.int16)),
    "numpy strings": (np.array(REWARDS), np.array(NAMES)),
    "strided": (np.repeat(np.array(REWARDS), 2)[::2], np.repeat(np.array(GROUPS), 2)[::2]),
    "unsigned": (np.array(REWARDS), np.array(GROUPS, dtype=np.uint64) + np.uint64(2**63)),
    "polars": (pl.Series(REWARDS), pl.Series(NAMES)),
    "polars integers": (pl.Series(REWARDS), pl.Series(GROUPS)),
    "polars chunks": (pl.concat([pl.Series(REWARDS[:2]), pl.Series(REWARDS[2:])], rechunk=False), pl.Series(NAMES)),
    "arrow": (pa.array(REWARDS), pa.array(NAMES)),
    "arrow integers": (pa.array(REWARDS), pa.array(GROUPS)),
    "arrow stream": (pa.chunked_array([REWARDS[:3], REWARDS[3:]]), pa.chunked_array([NAMES[:1], NAMES[1:]])),
    "torch": (torch.tensor(REWARDS, dtype=torch.float64, requires_grad=True), torch.tensor(GROUPS)),
    "hashes": (np.array(REWARDS), np.array([[group] * 16 for group in GROUPS], dtype=np.uint8)),
}


@pytest.mark.parametrize(("rewards", "groups"), COLUMNS.values(), ids=COLUMNS)
def test_every_kind_of_column(rewards: object, groups: object) -> None:
    expected = advantage.group_relative(REWARDS, GROUPS)
    advantages = advantage.group_relative(rewards, groups)
    assert isinstance(advantages, np.ndarray)
    assert advantages.dtype == np.float64
    np.testing.assert_array_equal(advantages, expected)


def test_float32_stays_float32() -> None:
    rewards = np.array(REWARDS, dtype=np.float32)
    assert advantage.group_relative(rewards, GROUPS).dtype == np.float32
    assert leave_one_out(torch.from_numpy(rewards), GROUPS).dtype == np.float32


def test_nothing_in_nothing_out() -> None:
    assert len(advantage.group_relative([], [])) == 0
    assert len(advantage.gigpo([], [], [], [], [], [])) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: advantage.group_relative([1.0, 2.0], [1]), "group_ids has 1 rows but rewards has 2"),
        (lambda: advantage.group_relative([1.0, 2.0], [1, 1], valid=[True]), "valid has 1 rows"),
        (lambda: advantage.group_relative([1.0, math.nan], [1, 1]), "(?i)nan"),
        (lambda: advantage.group_relative([[1.0, 2.0]], [1, 1]), r"rewards has shape \(1, 2\)"),
        (lambda: advantage.group_relative(["a", "b"], [1, 1]), "rewards has dtype"),
        (lambda: advantage.group_relative([1.0, None], [1, 1]), r"rewards\[1\] is None"),
        (lambda: advantage.group_relative([1.0, 2.0], np.array([0.5, 1.5])), "group_ids has dtype float64"),
        (lambda: advantage.group_relative([1.0, 2.0], [1, 1], valid=[1, 0]), "valid has dtype int64; give booleans"),
        (lambda: advantage.group_relative([1.0, 2.0], [1, 1], scale="iqr"), "iqr"),
        (lambda: advantage.group_relative([1.0, 2.0], [1, 1], singleton="one"), "one"),
        (lambda: advantage.group_relative([1.0], np.zeros((1, 3), np.uint8)), r"shape \(1, 3\)"),
        (lambda: leave_one_out([1.0, 2.0], [1]), "group_ids has 1 rows"),
        (lambda: advantage.gigpo([1.0], [1], [1], [0.5], [1], [0.0]), r"steps\[0\] is 0\.5"),
        (lambda: advantage.gigpo([1.0], [1], [1], [0], [1], [0.0], gamma=2.0), "gamma"),
    ],
)
def test_bad_input_names_the_argument(call: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


def naive_gigpo(
    columns: dict[str, list], *, gamma: float, step_weight: float, scale: str, voter: str, eps: float = 1e-6
) -> NDArray[np.float64]:
    """Compute GiGPO by its definition, with a loop for every sum."""
    rows = range(len(columns["rewards"]))
    returns = [
        sum(
            gamma ** (columns["steps"][other] - columns["steps"][row]) * columns["step_rewards"][other]
            for other in rows
            if columns["trajectory_ids"][other] == columns["trajectory_ids"][row]
            and columns["steps"][other] >= columns["steps"][row]
        )
        for row in rows
    ]

    def normalised(value: float, votes: list[float], *, alone_is_mean: bool) -> float:
        if len(votes) == 1:
            return 0.0 if alone_is_mean else value / ((1.0 + eps) if scale == "std" else 1.0)
        spread = np.std(votes, ddof=1) + eps if scale == "std" else 1.0
        return (value - np.mean(votes)) / spread

    out = []
    for row in rows:
        members = [other for other in rows if columns["group_ids"][other] == columns["group_ids"][row]]
        anchor = [other for other in members if columns["state_keys"][other] == columns["state_keys"][row]]
        episode = {columns["trajectory_ids"][other]: columns["rewards"][other] for other in members}
        votes = [columns["rewards"][other] for other in members] if voter == "step" else list(episode.values())
        out.append(
            normalised(columns["rewards"][row], votes, alone_is_mean=False)
            + step_weight * normalised(returns[row], [returns[other] for other in anchor], alone_is_mean=True)
        )
    return np.array(out)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("voter", ["step", "trajectory"])
@pytest.mark.parametrize("scale", ["none", "std"])
def test_gigpo_equals_its_definition(scale: str, voter: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns: dict[str, list] = {
        name: [] for name in ("rewards", "group_ids", "trajectory_ids", "steps", "state_keys", "step_rewards")
    }
    for trajectory in range(14):
        reward, group = float(rng.integers(0, 3)), f"group {trajectory % 5 if trajectory < 13 else 99}"
        for step in range(int(rng.integers(1, 6))):
            columns["rewards"].append(reward)
            columns["group_ids"].append(group)
            columns["trajectory_ids"].append(trajectory)
            columns["steps"].append(step)
            columns["state_keys"].append(f"state {rng.integers(0, 4)}")
            columns["step_rewards"].append(float(rng.normal()))
    order = rng.permutation(len(columns["rewards"]))
    columns = {name: [values[row] for row in order] for name, values in columns.items()}
    options = {"gamma": 0.9, "step_weight": 0.7, "scale": scale, "voter": voter}
    advantages = advantage.gigpo(*columns.values(), **options)
    np.testing.assert_allclose(advantages, naive_gigpo(columns, **options), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: advantage.GroupRelative(ddof=2),
            r"advantage\.GroupRelative: option ddof=2 is not possible; give one of 0, 1",
        ),
        (lambda: advantage.GroupRelative(eps=-1.0), "eps=-1.0"),
        (lambda: advantage.GroupRelative(scale="iqr"), "scale='iqr'"),
        (lambda: advantage.Discounted(gamma=1.5), "gamma=1.5"),
        (lambda: advantage.Discounted(column=""), "column=''"),
        (lambda: advantage.Discounted(kl_coefficient=0.1), "kl_coefficient=0.1"),
        (lambda: advantage.Gae(outcome=""), "column=''"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
