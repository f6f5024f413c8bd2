"""Components that compare rows with their group give the results of loops over nested lists."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rollouts import Step, plain, ragged, small

from agentrl_core import Batch, Forest, advantage, group, recipes, returns
from agentrl_core.advantage import Discounted, Gae, GroupRelative, Normalisation
from agentrl_core.component import Rows
from agentrl_core.exceptions import NotFoundError, RecipeError


def advantages(batch: Batch, level: str) -> list[float]:
    return batch.column("advantage", level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def compared(value: float, votes: list[float], *, scale: str = "std", ddof: int = 1, eps: float = 1e-6) -> float:
    """Return (x - mean) / (std + eps), or 0 if there is no other value or all are equal."""
    if len(votes) < 2 or max(votes) == min(votes):
        return 0.0
    spread = np.std(votes, ddof=ddof) + eps if scale == "std" else 1.0
    return float((value - np.mean(votes)) / spread)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["std", "none"]), st.integers(0, 1))
def test_draws_of_a_group(seed: int, scale: str, ddof: int) -> None:
    batch = ragged(seed)
    draws = plain(batch)
    expected = [
        compared(
            draw.score,
            [other.score for other in draws if other.group == draw.group and other.valid],
            scale=scale,
            ddof=ddof,
        )
        if draw.valid
        else 0.0
        for draw in draws
    ]
    close(advantages(GroupRelative(scale=scale, ddof=ddof)(batch), "draw"), expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["row", "trajectory"]))
def test_steps_with_voters(seed: int, voter: str) -> None:
    batch = ragged(seed)
    draws = plain(batch)
    expected = []
    for draw in draws:
        for step in draw.steps:
            same = [other for other in draws if other.group == draw.group and other.valid]
            known = [[s.reward for s in other.steps if np.isfinite(s.reward)] for other in same]
            votes = list(itertools.chain(*known)) if voter == "row" else [np.mean(part) for part in known if part]
            there = draw.valid and np.isfinite(step.reward)
            few = len(votes) < 2 or (max(votes) == min(votes))
            expected.append(
                (step.reward - np.mean(votes)) / (np.std(votes, ddof=1) + 1.0) if there and not few else 0.0
            )
            if there and few and len(votes) > 1:
                expected[-1] = (step.reward - votes[0]) / 1.0
    result = GroupRelative(column="reward", level="step", voter=voter, eps=1.0)(batch)
    close(advantages(result, "step"), expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_whitening_over_tokens_and_over_draws(seed: int) -> None:
    batch = GroupRelative(scale="none")(ragged(seed, unscored=True))
    draws = plain(batch)
    raw = advantages(batch, "draw")
    votes = [raw[draw.row] for draw in draws if draw.valid for _ in range(draw.trained)]
    expected = [
        (raw[draw.row] - np.mean(votes)) / math.sqrt(np.var(votes, ddof=1) + 1e-8) if draw.valid and votes else 0.0
        for draw in draws
    ]
    whiten = GroupRelative(column="advantage", group_by="batch", voter="token", eps=0.0, variance_eps=1e-8)
    close(advantages(whiten(batch), "draw"), expected, 2e-4)
    by_token = GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8)
    tokens = [expected[draw.row] if token.trained and draw.valid else 0.0 for draw in draws for token in draw.tokens]
    close(advantages(by_token(batch), "token"), tokens, 2e-4)


def test_units_of_draws_and_tokens() -> None:
    batch = small([(0, [1, 1, 1]), (0, [2])], draw_score=[1.0, 0.0])
    # Three steps vote 1, one votes 0; of the tokens, three vote 1 and two vote 0.
    close(advantages(GroupRelative(voter="step", scale="none")(batch), "draw"), [0.25, -0.75])
    close(advantages(GroupRelative(voter="token", scale="none")(batch), "draw"), [0.4, -0.6])
    steps = GroupRelative(level="step", voter="trajectory", scale="none")(batch)
    close(advantages(steps, "step"), [0.5, 0.5, 0.5, -0.5])


@pytest.mark.parametrize("seed", range(3))
def test_a_baseline_below_the_mean(seed: int) -> None:
    # AsymRE: r - (mean - 0.1). Scores 1, 0, 0.5 of one group: 0.6, -0.4, 0.1.
    batch = small([(0, [1]), (0, [1]), (0, [1])], draw_score=[1.0, 0.0, 0.5])
    close(advantages(GroupRelative(scale="none", shift=0.1)(batch), "draw"), [0.6, -0.4, 0.1])
    batch = ragged(seed, unscored=True)
    plainly = advantages(GroupRelative(scale="none", coefficient=2.0)(batch), "draw")
    expected = [value + (0.1 if draw.valid else 0.0) for value, draw in zip(plainly, plain(batch), strict=True)]
    assert any(not draw.valid for draw in plain(batch))
    close(advantages(GroupRelative(scale="none", coefficient=2.0, shift=0.1)(batch), "draw"), expected)


def test_each_prompt_once_in_a_batch() -> None:
    batch = small([(0, [1]), (0, [1]), (0, [1]), (1, [1])], draw_score=[1.0, 1.0, 1.0, 0.0])
    result = GroupRelative(group_by="batch", voter="group", scale="none")(batch)
    close(advantages(result, "draw"), [0.5, 0.5, 0.5, -0.5])


def test_a_unit_compared_as_one() -> None:
    batch = small([(0, [1, 1]), (0, [1])], draw_score=[0.0, 0.0], step_x=[0.0, 2.0, 3.0])
    result = GroupRelative(column="x", level="step", voter="trajectory", output="voter", scale="none")(batch)
    close(advantages(result, "step"), [-1.0, -1.0, 1.0])


def test_median_pivot() -> None:
    batch = small([(0, [1])] * 5, draw_score=[0.0, 1.0, 3.0, 2.0, 10.0])
    result = GroupRelative(center="median", median="lower", scale="mad", eps=1e-3)(batch)
    close(advantages(result, "draw"), [-1.998002, -0.999001, 0.999001, 0.0, 7.992008], 1e-6)
    even = small([(0, [1])] * 4, draw_score=[0.0, 1.0, 0.0, 1.0])
    floorless = GroupRelative(center="median", median="lower", scale="mad", eps=1e-3)(even)
    close(advantages(floorless, "draw"), [0.0, 1000.0, 0.0, 1000.0], 1e-3)


@pytest.mark.parametrize(
    ("ddof", "right", "wrong"),
    [(1, [0.680175, 0.392699, 0.226725], [0.226725, 0.392699, 0.680175]), (0, [0.667379, 0.350079, 0.222460], None)],
)
def test_beta_normalisation(ddof: int, right: list[float], wrong: list[float] | None) -> None:
    scores = [1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0]
    batch = small([(row // 4, [1]) for row in range(12)], draw_score=[float(score) for score in scores])
    values = advantages(GroupRelative(scale="beta", ddof=ddof)(batch), "draw")
    close([values[0], values[4], values[8]], right, 1e-5)
    if wrong is not None:
        close([-values[3], -values[7], -values[11]], wrong, 1e-5)


def test_components_of_a_reward_by_themselves() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 2, size=6).astype(float), rng.normal(size=6)
    batch = small([(row // 3, [1 + row]) for row in range(6)], draw_score=[0.0] * 6, draw_a=first, draw_b=second)
    for link in (
        GroupRelative(column="a", coefficient=2.0, add=True),
        GroupRelative(column="b", coefficient=0.5, add=True),
    ):
        batch = link(batch)
    expected = [
        2.0 * compared(first[row], first[row // 3 * 3 :][:3].tolist())
        + 0.5 * compared(second[row], second[row // 3 * 3 :][:3].tolist())
        for row in range(6)
    ]
    close(advantages(batch, "draw"), expected)


def test_adding_lifts_to_the_finer_level() -> None:
    batch = small([(0, [1, 1]), (0, [1])], draw_score=[1.0, 0.0], step_x=[4.0, 0.0, 2.0])
    steps = GroupRelative(column="x", level="step", scale="none")
    draws = GroupRelative(scale="none")
    for first, second in ((steps, draws), (draws, steps)):
        link = dataclasses.replace(second, add=True)
        close(advantages(link(first(batch)), "step"), [2.5, -1.5, -0.5])


def test_scale_of_the_batch() -> None:
    batch = small([(0, [1]), (0, [1]), (1, [1]), (1, [1])], draw_score=[1.0, 3.0, 0.0, 8.0])
    spread = np.std([1.0, 3.0, 0.0, 8.0], ddof=1)
    result = GroupRelative(scale_by="batch", eps=0.0)(batch)
    close(advantages(result, "draw"), np.array([-1.0, 1.0, -4.0, 4.0]) / spread)


def test_fallback_where_a_result_is_far() -> None:
    # By tokens, the short draw is 100 deviations away; by draws, less than one.
    batch = small([(0, [400]), (0, [1]), (1, [1]), (1, [1])], draw_score=[1.0, 0.0, 1.0, 0.0])
    token, row = (advantages(GroupRelative(voter=voter)(batch), "draw") for voter in ("token", "row"))
    assert abs(token[1]) > 5.0
    values = advantages(GroupRelative(voter="token", fallback_above=5.0)(batch), "draw")
    close(values, row[:2] + token[2:])


def test_shared_rows() -> None:
    batch = ragged(3, unscored=False)
    draws = plain(batch)
    uses: dict[tuple[int, int, int], list[int]] = {}
    for draw in draws:
        for step in draw.steps:
            uses.setdefault((draw.group, *step.physical), []).append(step.row)
    assert any(len(rows) > 1 for rows in uses.values()), "some steps are shared"
    rewards = {step.row: step.reward for draw in draws for step in draw.steps if np.isfinite(step.reward)}
    for shared in ("split", "owner"):
        expected = np.zeros(len(batch.column("step", "step")))
        for task in {draw.group for draw in draws}:
            parts = [rows for key, rows in uses.items() if key[0] == task and rows[0] in rewards]
            if len(parts) < 1:
                continue
            center = np.mean([rewards[rows[0]] for rows in parts])
            members = [row for rows in parts for row in rows]
            for row in members:
                expected[row] = rewards[row] - center if len(members) > 1 else 0.0
        result = GroupRelative(column="reward", level="step", scale="none", shared=shared)(batch)
        close(advantages(result, "step"), expected)


def forked() -> Batch:
    """Return two draws that share a step paid 3, the first then paid 1 and the second 0; and one of a step paid 0."""
    forest = Forest()
    forest.add_group(0, "task")
    first, alone = forest.start(0, 0), forest.start(0, 1)
    for trajectory, paid in ((first, 3.0), (alone, 0.0)):
        forest.append(trajectory, [1], kind="prompt")
        forest.append(trajectory, [2], kind="action", logprobs=[-1.0])
        forest.step(trajectory, reward=paid)
    second = forest.fork(first)
    for trajectory, paid in ((first, 1.0), (second, 0.0)):
        forest.append(trajectory, [3], kind="observation", state="later")
        forest.append(trajectory, [4], kind="action", logprobs=[-1.0])
        forest.step(trajectory, reward=paid)
    for trajectory in (first, second, alone):
        forest.finish(trajectory, reward=0.0)
    return forest.freeze()


@pytest.mark.parametrize(
    ("shared", "of_rewards", "of_returns"), [("each", 7 / 5, 8 / 5), ("split", 4 / 4, 4.5 / 4), ("owner", 4 / 4, 5 / 4)]
)
def test_returns_of_shared_steps(shared: str, of_rewards: float, of_returns: float) -> None:
    batch = forked()
    assert batch.column("reward", "step").tolist() == [3.0, 1.0, 3.0, 0.0, 0.0]
    options = {"level": "step", "scale": "none", "shared": shared}
    after = GroupRelative(column="advantage", **options)(Discounted()(batch))
    close(advantages(after, "step"), [4 - of_returns, 1 - of_returns, 3 - of_returns, -of_returns, -of_returns])
    before = GroupRelative(column="reward", **options)(batch)
    close(advantages(before, "step"), [3 - of_rewards, 1 - of_rewards, 3 - of_rewards, -of_rewards, -of_rewards])


def test_a_discount_steps_over_tokens_that_are_not_trained() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    trajectory = forest.start(0, 0)
    forest.append(trajectory, [1], kind="prompt")
    forest.append(trajectory, [2, 3, 4], kind="action", logprobs=[-1.0] * 3, trainable=[1, 0, 1])
    forest.step(trajectory)
    forest.finish(trajectory, reward=1.0)
    batch = forest.freeze().with_columns("draw", score=[1.0]).with_columns("token", value=[0.0, 0.0, 0.0])
    discounted = Discounted(column="", outcome="score", level="token", gamma=0.5)
    assert advantages(discounted(batch), "token") == [0.5, 0.0, 1.0]
    # The same as verl's REINFORCE++ on its response mask, and as an estimate without a critic.
    assert advantages(Gae(gamma=0.5, lam=1.0)(batch), "token") == [0.5, 0.0, 1.0]
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is installed by `make test`")
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    config = SimpleNamespace(gamma=0.5, get=lambda _, other: other)
    _, theirs = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        token_level_rewards=torch.tensor([[0.0, 0.0, 1.0]]), response_mask=mask, config=config
    )
    assert (theirs * mask)[0].tolist() == [0.5, 0.0, 1.0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("voter", ["step", "trajectory"])
@pytest.mark.parametrize("scale", ["none", "std"])
def test_a_chain_is_group_in_group(scale: str, voter: str, seed: int) -> None:
    batch = ragged(seed)
    links = (
        Discounted(gamma=0.9),
        GroupRelative(column="advantage", level="step", group_by="group_id,state_key", scale=scale, coefficient=0.7),
        GroupRelative(level="step", voter="row" if voter == "step" else voter, scale=scale, singleton="raw", add=True),
    )
    rows = [(draw, s) for draw in plain(batch) for s in draw.steps]
    expected = advantage.gigpo(
        [draw.score if draw.valid else 0.0 for draw, _ in rows],
        [draw.group for draw, _ in rows],
        [draw.row for draw, _ in rows],
        [s.row for _, s in rows],
        [s.state for _, s in rows],
        [s.reward if np.isfinite(s.reward) else 0.0 for _, s in rows],
        gamma=0.9,
        step_weight=0.7,
        scale=scale,
        voter=voter,
        valid=[draw.valid for draw, _ in rows],
    )
    for link in links:
        batch = link(batch)
    close(advantages(batch, "step"), expected)
    if (scale, voter) == ("none", "trajectory"):
        assert dataclasses.replace(links[2], singleton="zero") == recipes.GIGPO.chain("advantage")[2]


def test_the_last_row_of_a_draw() -> None:
    batch = small([(0, [1, 1]), (0, [2]), (0, [1])], draw_score=[1.0, 0.0, math.nan])
    last = GroupRelative(level="step", rows="last", scale="none")
    close(advantages(last(batch), "step"), [0.0, 0.5, -0.5, 0.0])
    close(advantages(Discounted(column="advantage", gamma=0.5)(last(batch)), "step"), [0.25, 0.5, -0.5, 0.0])
    tokens = GroupRelative(level="token", rows="last", scale="none", coefficient=2.0)
    close(advantages(tokens(batch), "token"), [0.0, 1.0, 0.0, -1.0, 0.0])


def streams(batch: Batch, zero_is_missing: bool, joint: bool) -> list[float]:
    """Compute IGPO on nested lists: gains and outcomes compared each or together, then returns."""

    def is_included(step: Step) -> bool:
        return bool(np.isfinite(step.reward)) and not (zero_is_missing and step.reward == 0.0)

    def normal(value: float, votes: list[float]) -> float:
        spread = math.sqrt(np.var(votes) + 1e-8) if votes else 1.0
        return 0.0 if len(votes) < 2 or max(votes) == min(votes) else (value - np.mean(votes)) / spread

    draws, expected = plain(batch), []
    for draw in draws:
        members = [other for other in draws if other.group == draw.group and other.valid]
        gains = [step.reward for other in members for step in other.steps if is_included(step)]
        outcomes = [other.score for other in members if other.steps]
        if joint:
            gains = outcomes = gains + outcomes
        rewards = [2.0 * normal(step.reward, gains) if is_included(step) else 0.0 for step in draw.steps]
        if draw.steps:
            rewards[-1] += 3.0 * normal(draw.score, outcomes)
        expected += [
            sum(0.5 ** (j - t) * rewards[j] for j in range(t, len(rewards))) if draw.valid else 0.0
            for t in range(len(rewards))
        ]
    return expected


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_two_streams_before_the_returns(seed: int) -> None:
    batch = ragged(seed)
    options = {"level": "step", "ddof": 0, "eps": 0.0, "variance_eps": 1e-8}
    result = GroupRelative(column="reward", coefficient=2.0, **options)(batch)
    result = GroupRelative(rows="last", coefficient=3.0, add=True, **options)(result)
    result = Discounted(column="advantage", gamma=0.5)(result)
    close(advantages(result, "step"), streams(batch, zero_is_missing=False, joint=False), 1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_the_streams_of_public_code(seed: int, zero_is_missing: bool, joint: bool) -> None:
    batch = ragged(seed)
    rows = Rows(batch, "step")
    gains, outcomes, groups = (
        rows.values("reward"),
        np.where(rows.last, rows.values("score"), np.nan),
        rows.keys("group_id"),
    )
    votes = rows.valid & np.isfinite(gains) & (gains != 0.0 if zero_is_missing else True)
    paid = rows.valid & np.isfinite(outcomes)
    values, valid = np.concatenate([np.nan_to_num(gains), np.nan_to_num(outcomes)]), np.concatenate([votes, paid])
    # One call for both streams; they are separate groups unless both have the same statistics.
    ids = np.concatenate([groups, groups if joint else groups + len(rows)])
    compared = group.normalise(values, ids, valid=valid, **advantage.compat("igpo"))
    total = 2.0 * compared[: len(rows)] + 3.0 * compared[len(rows) :]
    close(returns.discounted(total, rows.draws, gamma=0.5), streams(batch, zero_is_missing, joint), 1e-4)


def test_only_first_steps_vote() -> None:
    batch = small([(0, [1, 1]), (0, [1])], draw_score=[0.0, 0.0], step_process=[1.0, 5.0, 3.0])
    close(advantages(GroupRelative(column="process", level="step", scale="none")(batch), "step"), [-2.0, 2.0, 0.0])
    # The public code of iStar: a row without a vote still gets a value.
    first = group.normalise([1.0, 5.0, 3.0], [0, 0, 0], weights=[1.0, 0.0, 1.0], **advantage.compat("istar/step"))
    close(first, [-1.0, 3.0, 1.0])


def test_discounted_outcome_after() -> None:
    batch = small([(0, [1, 1]), (0, [1])], draw_score=[1.0, 0.0])
    result = Discounted(column="", outcome="score", gamma=0.5)(batch)
    returned = [0.5, 1.0, 0.0]
    close(advantages(result, "step"), returned)
    result = GroupRelative(column="advantage", level="step")(result)
    close(advantages(result, "step"), [compared(value, returned) for value in returned])


def test_kl_in_the_reward_of_tokens() -> None:
    batch = small([(0, [2])], draw_score=[1.0], token_reference_logprob=[-3.0, -2.0])
    component = Discounted(column="", outcome="score", level="token", kl_coefficient=0.1)
    # log pi is -1: 2 and 1 above the reference.
    close(advantages(component(batch), "token"), [1.0 - 0.3, 1.0 - 0.1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupRelative(output="voter"), "output='voter' is not possible; choose voter"),
        (lambda: GroupRelative(scale_by="batch", scale="none"), "scale_by='batch'"),
        (lambda: GroupRelative(group_by=""), "group_by=''"),
        (lambda: GroupRelative(fallback_above=0.0), "fallback_above=0.0"),
        (lambda: Normalisation(scale_at_least=-1.0), "scale_at_least=-1.0"),
        (lambda: Normalisation(at_most=0.0), "at_most=0.0"),
        (lambda: Normalisation(votes_at_least=0), "votes_at_least=0"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(NotFoundError, match=r"reward\.format"):
        GroupRelative(column="reward.format")(ragged(0))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_invariances(seed: int, random: object) -> None:
    batch = ragged(seed)
    score: NDArray[np.float64] = np.asarray(batch.column("score", "draw"), np.float64)
    component = GroupRelative(eps=0.0)
    standard = advantages(component(batch), "draw")
    close(advantages(component(batch.with_columns("draw", score=3.0 * score + 7.0)), "draw"), standard)
    order = list(range(batch.num_draws))
    random.shuffle(order)
    moved = advantages(component(batch.select_draws(order)), "draw")
    assert moved == [standard[row] for row in order]
    valid = np.flatnonzero(np.isfinite(score))
    assert advantages(component(batch.select_draws(valid)), "draw") == [standard[row] for row in valid]
