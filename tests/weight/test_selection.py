"""Components that leave draws and tokens out of the loss."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import plain, ragged, small

from agentrl_core import Batch, Forest
from agentrl_core.advantage import GroupRelative
from agentrl_core.env import StepFlag
from agentrl_core.exceptions import NotFoundError, RecipeError
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import OutcomeScore, Unscored
from agentrl_core.select import Band
from agentrl_core.weight import ColumnScaled, FlagFilter, GroupFilter, SelectDraws, SelectTokens

SEEDS = st.integers(0, 10**6)


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def credited(seed: int) -> Batch:
    """A ragged batch with advantages and entropies."""
    batch = GroupRelative()(ragged(seed))
    entropy = np.random.default_rng(seed).exponential(size=len(batch.column("token", "token")))
    return batch.with_columns("token", entropy=entropy.astype(np.float32))


def members(batch: Batch) -> list[list[int]]:
    """Return draws with a score, by group."""
    draws = sorted((draw for draw in plain(batch) if draw.valid), key=lambda draw: (draw.group, draw.row))
    return [[draw.row for draw in part] for _, part in itertools.groupby(draws, key=lambda draw: draw.group)]


# Tokens


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.sampled_from(["quantile", "top"]), st.sampled_from(["batch", "draw"]))
def test_unsure_tokens(seed: int, kind: str, group_by: str) -> None:
    batch = credited(seed)
    entropy = batch.column("entropy", "token").astype(float)
    draws = [[token.row for token in draw.tokens if token.trained] for draw in plain(batch) if draw.valid]
    expected = np.zeros(len(entropy))
    for rows in draws if group_by == "draw" else [list(itertools.chain(*draws))]:
        if rows and kind == "quantile":
            expected[rows] = entropy[rows] >= np.quantile(entropy[rows], 0.6)
        elif rows:
            largest = sorted(rows, key=lambda row: -entropy[row])
            expected[largest[: int(0.4 * len(rows))]] = 1.0
    options = {"column": "entropy", "kind": kind, "group_by": group_by, "fraction": 0.4}
    result = SelectTokens(**options)(batch)
    assert column(result, "weight", "token") == expected.tolist()
    assert not result.has("keep", "token")
    kept_only = SelectTokens(**options, denominator="kept")(batch)
    assert column(kept_only, "keep", "token") == expected.tolist()
    assert not kept_only.has("weight", "token")


def test_tokens_among_those_that_are_kept() -> None:
    batch = small([(0, [2]), (0, [2])], token_entropy=[3.0, 2.0, 4.0, 2.0])
    largest = {"kind": "top", "fraction": 0.5}
    assert column(SelectTokens(**largest)(batch), "weight", "token") == [1.0, 0.0, 1.0, 0.0]
    one = batch.with_columns("draw", keep=np.array([0, 1], np.uint8))
    both = SelectTokens(**largest, denominator="kept")(one)
    assert column(both, "keep", "token") == [0.0, 0.0, 1.0, 0.0]


def test_ties() -> None:
    batch = small([(0, [4])], token_entropy=[1.0, 1.0, 1.0, 1.0])
    assert column(SelectTokens()(batch), "weight", "token") == [1.0] * 4
    first = SelectTokens(kind="top", fraction=0.3, rounding="ceil")
    assert column(first(batch), "weight", "token") == [1.0, 1.0, 0.0, 0.0]


# Draws


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_draws_of_large_advantages(seed: int) -> None:
    batch = credited(seed)
    size, expected = np.abs(batch.column("advantage", "draw").astype(float)), np.zeros(batch.num_draws)
    for rows in members(batch):
        largest = sorted(rows, key=lambda row: -size[row])
        expected[largest[: max(int(0.5 * len(rows)), 1)]] = 1.0
    assert column(SelectDraws(fraction=0.5)(batch), "keep", "draw") == expected.tolist()
    expected = np.where(size >= 0.5, expected, 0.0)
    assert column(SelectDraws(fraction=0.5, at_least=0.5)(batch), "keep", "draw") == expected.tolist()


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, 3))
def test_draws_of_largest_variance(seed: int, count: int) -> None:
    batch = credited(seed)
    advantage = batch.column("advantage", "draw").astype(float)
    keep = column(SelectDraws(kind="max_variance", count=count)(batch), "keep", "draw")
    for rows in members(batch):
        chosen = [advantage[row] for row in rows if keep[row]]
        assert len(chosen) == min(count, len(rows))
        best = max(np.var(advantage[list(choice)]) for choice in itertools.combinations(rows, len(chosen)))
        np.testing.assert_allclose(np.var(chosen), best, rtol=1e-9, atol=1e-12)


def test_pivots_quantiles_and_multiples() -> None:
    batch = small([(0, [1])] * 5, draw_advantage=[-2.0, -1.0, 1.0, 0.0, 8.0])
    keep = [
        (SelectDraws(kind="pivot"), [1, 1, 1, 0, 1]),
        (SelectDraws(kind="quantile", fraction=0.25), [0, 0, 1, 0, 1]),
        (SelectDraws(positive_only=True), [0, 0, 1, 0, 1]),
        (SelectDraws(count=2, group_by="batch"), [1, 0, 0, 0, 1]),
        (SelectDraws(multiple=2), [1, 1, 1, 0, 1]),
        (SelectDraws(at_least=1.5, multiple=3, round_up=True), [1, 1, 0, 0, 1]),
        (SelectDraws(at_least=1.5, multiple=3), [0, 0, 0, 0, 0]),
    ]
    for component, expected in keep:
        assert column(component(batch), "keep", "draw") == expected, component


def test_draws_that_leave_may_still_count() -> None:
    """LOOP divides by the mini-batch size before the filter: of 4 draws a kept one has weight 1/4, not 1/2."""
    batch = small([(0, [1])] * 4, draw_advantage=[1.0, -1.0, 0.0, 0.0], draw_score=[1.0, 0.0, 0.5, 0.5])
    chosen = {"kind": "magnitude", "at_least": 0.01, "group_by": "batch"}
    for denominator, expected in (("all", 0.25), ("kept", 0.5)):
        recipe = Recipe(
            name="mine",
            advantage=GroupRelative(),
            weight=SelectDraws(**chosen, denominator=denominator),
            loss=Policy(aggregate="sequence_mean"),
        )
        (update,) = recipe.updates(recipe.weight(batch))
        (pack,) = update.pack(max_tokens=50)
        assert pack.streams.advantage_positive.sum().item() == pytest.approx(expected)
        assert pack.streams.advantage_negative.sum().item() == pytest.approx(-expected)


def test_masks_meet() -> None:
    batch = small([(0, [1, 2]), (0, [1])], draw_advantage=[2.0, 1.0], token_entropy=[1.0, 2.0, 3.0, 9.0])
    draws = SelectDraws(count=1)(batch)
    both = SelectTokens(kind="top", fraction=0.5, denominator="kept")(draws)
    assert column(both, "keep", "token") == [0.0, 0.0, 1.0, 0.0]
    weights = both.token_weights(np.arange(2), keep=both.column("keep", "token") != 0)
    assert weights.tolist() == [0.0, 0.0, 1.0, 0.0]


def test_an_update_trains_the_kept_draws_with_their_weights() -> None:
    batch = small([(0, [2]), (0, [1]), (1, [1]), (1, [1])], draw_score=[1.0, 0.0, 1.0, 1.0])
    batch = batch.with_columns("draw", task_weight=[1.0, 3.0, 1.0, 1.0])
    chain = (GroupFilter(), ColumnScaled())
    recipe = Recipe(name="mine", advantage=GroupRelative(scale="none"), weight=chain, loss=Policy())
    (update,) = recipe.updates(recipe.credit(batch))
    sums = dict.fromkeys(("advantage_positive", "advantage_negative", "weight_kl"), 0.0)
    for pack in update.pack(max_tokens=50):
        for name in sums:
            sums[name] += getattr(pack.streams, name).sum().item()
    expected = {"advantage_positive": 2 * 0.5 / 3, "advantage_negative": -0.5 * 3.0 / 3, "weight_kl": 1.0}
    assert sums == pytest.approx(expected, abs=1e-6)


# Filters


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_groups_in_a_band(seed: int) -> None:
    batch, scores = ragged(seed), ragged(seed).column("score", "draw").astype(float)
    expected = np.zeros(batch.num_draws)
    for rows in members(batch):
        group_scores = scores[rows]
        expected[rows] = group_scores.std() > 0.41 and 0.3 <= group_scores.mean() <= 1.5 and len(rows) >= 2
    result = GroupFilter(band=Band(std_above=0.41, at_least=0.3, at_most=1.5, members_at_least=2))(batch)
    assert column(result, "keep", "draw") == expected.tolist()


def test_groups_that_vary_most() -> None:
    scores = [0.0, 1.0, 0.0, 9.0, 5.0, 5.0, 0.0, 2.0]
    batch = small([(group, [1]) for group in range(4) for _ in range(2)], draw_score=scores)
    result = GroupFilter(band=Band(std_above=None), top_fraction=0.5)(batch)
    assert column(result, "keep", "draw") == [0, 0, 1, 1, 0, 0, 1, 1]
    assert column(GroupFilter()(batch), "keep", "draw") == [1, 1, 1, 1, 0, 0, 1, 1]


def test_flags_of_steps_go_by_their_names() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    marks = [
        [StepFlag.TOOL_RESULT],
        [StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR, 0],
        [0, StepFlag.VOID],
        [1 << 20],
        [StepFlag.UNTRAINED | StepFlag.JUDGE_FAILED],
    ]
    for member, flags in enumerate(marks):
        trajectory = forest.start(0, member)
        for turn, flag in enumerate(flags):
            forest.append(trajectory, [turn], kind="observation" if turn else "prompt")
            forest.append(trajectory, [3], kind="action", logprobs=[-1.0])
            forest.step(trajectory, flags=flag)
        forest.finish(trajectory, reward=1.0)
    batch = OutcomeScore()(forest.freeze())
    for name, expected in {
        "tool_error": [1, 0, 1, 1, 1],
        "void": [1, 1, 0, 1, 1],
        "tool_result,untrained": [0, 0, 1, 1, 0],
        "format_error": [1] * 5,
    }.items():
        assert column(FlagFilter(flags=name)(batch), "keep", "draw") == expected
    assert np.isnan(Unscored(flags="judge_failed,void")(batch).column("score", "draw")).tolist() == [0, 0, 1, 0, 1]
    flagged = batch.with_columns("step", void=[1, 0, 0, 0, 0, 0, 0])
    assert column(FlagFilter(flags="void")(flagged), "keep", "draw") == [0, 1, 1, 1, 1]
    recipe = Recipe(name="x", reward=(OutcomeScore(), Unscored(flags="judge_failed")), advantage=GroupRelative())
    recipe.credit(forest.freeze())
    with pytest.raises(NotFoundError, match="no column"):
        FlagFilter(flags="no_such_flag")(batch)


def test_flagged_draws_vote_or_do_not() -> None:
    batch = small([(0, [1, 1]), (0, [1]), (0, [3])], draw_score=[3.0, 1.0, 0.0], step_void=[0, 1, 0, 0])
    voted = FlagFilter(flags="void")(GroupRelative(scale="none")(batch))
    assert column(voted, "keep", "draw") == [0, 1, 1]
    np.testing.assert_allclose(column(voted, "advantage", "draw"), [5 / 3, -1 / 3, -4 / 3], rtol=1e-6)
    unscored = GroupRelative(scale="none")(Unscored(flags="void")(batch))
    assert column(unscored, "advantage", "draw") == [0.0, 0.5, -0.5]
    long = FlagFilter(flags="", shorter_than=3)(batch)
    assert column(long, "keep", "draw") == [1, 1, 0]
    draws = batch.with_columns("draw", bad=np.array([0, 0, 1], np.uint8))
    assert column(FlagFilter(flags="bad", level="draw")(draws), "keep", "draw") == [1, 1, 0]
    assert np.isnan(column(Unscored(flags="bad", level="draw")(draws), "score", "draw")).tolist() == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SelectTokens(fraction=1.5), "option fraction=1.5"),
        (lambda: SelectDraws(count=0), "option count=0"),
        (lambda: SelectDraws(multiple=0), "option multiple=0"),
        (lambda: GroupFilter(band=Band(at_least=0.9, at_most=0.1)), "option at_least=0.9"),
        (lambda: GroupFilter(top_fraction=0.0), "option top_fraction=0.0"),
        (lambda: FlagFilter(flags=""), "option flags=''"),
        (lambda: FlagFilter(shorter_than=0), "option shorter_than=0"),
        (lambda: Unscored(flags=""), "option flags=''"),
    ],
)
def test_impossible_options(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
