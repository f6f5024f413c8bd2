"""Convert rows of trainers to a batch and back, compared with plain loops over their tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import recipes
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.sequences import Sequences


def random_sequences(seed: int, *, several: bool) -> Sequences:
    """Return up to eight random rows of three tasks; `several`: with rows of the same rollout."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, rng.integers(1, 9))
    groups = [f"task {group}" for group in rng.integers(0, 3, len(lengths))]
    return Sequences(
        prompts=[rng.integers(0, 50, rng.integers(1, 5)) for _ in lengths],
        responses=[rng.integers(0, 50, length) for length in lengths],
        masks=[(rng.random(length) < 0.6).astype(int) for length in lengths],
        groups=groups,
        rewards=[rng.normal(size=length) for length in lengths],
        rollouts=[(group, rng.integers(0, 3)) for group in groups] if several else None,
        logprobs=[-rng.random(length) for length in lengths],
        columns={"value": [rng.normal(size=length) for length in lengths]},
    )


def order(rows: Sequences) -> list[int]:
    """Return the indices of rows with sampled tokens, in the order of their draws: by task, rollout and row."""
    tasks = list(dict.fromkeys(rows.groups))
    rollouts = list(rows.rollouts or range(len(rows.groups)))
    live = [row for row, mask in enumerate(rows.masks) if any(mask)]
    firsts = list(dict.fromkeys(rollouts[row] for row in live))
    return sorted(live, key=lambda row: (tasks.index(rows.groups[row]), firsts.index(rollouts[row]), row))


@settings(deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_every_sampled_token_is_there_once_with_its_numbers(seed: int, several: bool) -> None:
    rows = random_sequences(seed, several=several)
    batch, row_order = rows.batch, order(rows)
    for name, column in (("responses", "token"), ("logprobs", "behaviour_logprob"), ("value", "value")):
        row_values = rows.columns[name] if name in rows.columns else getattr(rows, name)
        expected = [x for row in row_order for x, m in zip(row_values[row], rows.masks[row], strict=True) if m]
        np.testing.assert_allclose(batch.column(column, "token"), expected, rtol=1e-6)
    for row, values in enumerate(rows.spread(batch.column("value", "token"))):
        np.testing.assert_allclose(values, rows.columns["value"][row] * rows.masks[row])


@settings(deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_a_reward_belongs_to_the_turn_before_it(seed: int, several: bool) -> None:
    rows = random_sequences(seed, several=several)
    batch, expected, of_draw = rows.batch, [], {}
    for row in order(rows):
        mask, paid = rows.masks[row], rows.rewards[row]
        starts = [t for t, m in enumerate(mask) if m and (t == 0 or not mask[t - 1])]
        ends = [*starts[1:], len(mask)]
        turns = [sum(paid[begin:end]) for begin, end in zip([0, *starts[1:]], ends, strict=True)]
        expected += turns
        draw = int(rows.draws[row])
        of_draw[draw] = of_draw.get(draw, 0.0) + sum(turns)
    np.testing.assert_allclose(batch.column("reward", "step"), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.column("reward", "draw"), list(of_draw.values()), rtol=1e-5, atol=1e-5)
    assert list(of_draw) == sorted(of_draw)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_batch_gives_the_rows_back(seed: int) -> None:
    rows = random_sequences(seed, several=False)
    back, row_order = Sequences.of(rows.batch, columns=["value"]), order(rows)
    assert len(back.prompts) == len(row_order)
    for place, row in enumerate(row_order):
        mask = np.asarray(rows.masks[row])
        first, last = np.flatnonzero(mask)[[0, -1]]  # tokens before the first sampled one are prompt
        read = [*rows.prompts[row], *rows.responses[row][:first]]
        assert back.prompts[place].tolist() == read
        assert back.responses[place].tolist() == rows.responses[row][first : last + 1].tolist()
        assert back.masks[place].tolist() == mask[first : last + 1].tolist()
        np.testing.assert_allclose(back.rewards[place].sum(), rows.rewards[row].sum(), rtol=1e-5, atol=1e-5)
        for ours, theirs in ((back.logprobs, rows.logprobs), (back.columns["value"], rows.columns["value"])):
            np.testing.assert_allclose(ours[place], (theirs[row] * mask)[first : last + 1], rtol=1e-6)


def test_rows_of_a_rollout_are_one_member_of_the_group() -> None:
    # Two rollouts of a task, paid 1 and 0; the first compacted its history once, so it has two rows. The group has
    # mean 1/2 and deviation sqrt(1/2) = 0.7071, so the advantages are +-0.5 / 0.7071 = +-0.7071, on all rows.
    rows = Sequences(
        prompts=[[1, 2], [1, 9], [1, 2]],
        responses=[[3, 4], [6, 7, 8], [3, 5]],
        masks=[[1, 1], [1, 0, 1], [1, 1]],
        groups=["a", "a", "a"],
        rollouts=["a_0", "a_0", "a_1"],
        rewards=[0.0, 1.0, 0.0],
    )
    batch = recipes.GRPO.credit(rows.batch)
    assert (batch.num_draws, rows.draws.tolist()) == (2, [0, 0, 1])
    spread = [values.round(3).tolist() for values in rows.spread(batch.column("advantage", "token"))]
    assert spread == [[0.707, 0.707], [0.707, 0.0, 0.707], [-0.707, -0.707]]


def test_a_row_of_which_nothing_was_sampled_is_left_out() -> None:
    rows = Sequences(
        prompts=[[1], [1]], responses=[[2, 3], [4]], masks=[[0, 0], [1]], groups=[0, 0], rewards=[5.0, 1.0]
    )
    assert rows.draws.tolist() == [-1, 0]
    assert rows.batch.column("reward", "draw").tolist() == [1.0]
    assert [values.tolist() for values in rows.spread([7.0])] == [[0.0, 0.0], [7.0]]


def test_bad_rows_are_refused() -> None:
    good = {"prompts": [[1]], "responses": [[2, 3]], "masks": [[1, 1]], "groups": ["a"], "rewards": [1.0]}
    for change, message in (
        ({"masks": [[1]]}, r"masks\[0\] has 1 values, but its response has 2 tokens"),
        ({"groups": ["a", "b"]}, "groups has 2 rows, but responses has 1"),
        ({"columns": {"value": [[1.0]]}}, r"value\[0\] has 1 values"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            Sequences(**{**good, **change})
    twice = {name: [*values, *values] for name, values in good.items()}
    with pytest.raises(InvalidInputError, match="rollout 'r' has rows in groups 'a' and 'b'"):
        Sequences(**{**twice, "groups": ["a", "b"], "rollouts": ["r", "r"]})
    with pytest.raises(InvalidInputError, match="values has shape"):
        Sequences(**good).spread([1.0])
