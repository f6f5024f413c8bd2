"""Components of phase reward, against loops over nested lists and fixtures."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from rollouts import plain, ragged, small

from agentrl_core import Batch, Forest
from agentrl_core.advantage import Discounted, Gae, GroupRelative
from agentrl_core.component import Column
from agentrl_core.exceptions import InvalidInputError, NotFoundError, RecipeError
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.cm2 import Checklist, ChecklistRelative
from agentrl_core.recipes.cory import TeamScore
from agentrl_core.recipes.ecrm import RiskAverse
from agentrl_core.recipes.igpo import InformationGain
from agentrl_core.recipes.max_at_k import MaxAtK
from agentrl_core.recipes.redit import NoiseReward
from agentrl_core.recipes.srpo import SuccessDistance
from agentrl_core.recipes.ssl import RoundUpReward
from agentrl_core.recipes.subpo import FirstVisits
from agentrl_core.recipes.temp_samp import CompressHigh
from agentrl_core.reward import (
    AnswerAgreement,
    CombineReward,
    GaussianProximity,
    ImplicitProcess,
    LengthPenalty,
    OutcomeScore,
    Unscored,
    WinRate,
)
from agentrl_core.reward.outcome import DropSurplus


def column(batch: Batch, name: str = "score", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def test_outcome_of_success_and_failure() -> None:
    batch = small([(0, [1])] * 3, draw_reward=[5.0, 6.0, math.nan], draw_success=[1, 0, 1])
    close(column(OutcomeScore()(batch)), [5.0, 6.0, math.nan])
    close(column(OutcomeScore(success=0.1, failure=-1.0)(batch)), [0.1, -1.0, math.nan])
    close(column(OutcomeScore(failure=-1.0)(batch)), [5.0, -1.0, math.nan])
    close(column(OutcomeScore(success=0.0)(batch)), [0.0, 6.0, math.nan])
    assert Column("draw", "success") not in OutcomeScore().needs
    assert Column("draw", "success") in OutcomeScore(success=1.0).needs


def test_fused_columns() -> None:
    batch = small(
        [(0, [1])] * 4, draw_score=[1.0, 2.0, 3.0, math.nan], draw_x=[1.0, 0.0, 8.0, 1.0], draw_success=[1, 0, 1, 1]
    )
    close(column(CombineReward("x", 0.5)(batch)), [1.5, 2.0, 7.0, math.nan])
    close(column(CombineReward("x", 0.5, at_most=1.0)(batch)), [1.5, 2.0, 4.0, math.nan])
    close(column(CombineReward("x", -1.0, only="success")(batch)), [0.0, 2.0, -5.0, math.nan])
    close(column(CombineReward("x", only="failure", kind="multiply")(batch)), [1.0, 0.0, 3.0, math.nan])
    close(column(CombineReward("x", kind="require", otherwise=-1.0)(batch)), [1.0, -1.0, 3.0, math.nan])
    close(column(CombineReward("x", kind="require", threshold=2.0)(batch)), [0.0, 0.0, 3.0, math.nan])


def test_combined_step_scores_broadcast_draw_columns() -> None:
    batch = small([(0, [1, 1]), (0, [1])], step_reward=[1.0, 2.0, math.nan], draw_x=[10.0, 20.0])
    fused = CombineReward("x", 0.1, level="step")(OutcomeScore(level="step")(batch))
    close(column(fused, "step_score", "step"), [2.0, 3.0, math.nan])
    close(column(fused, "reward", "step"), [1.0, 2.0, math.nan])  # a fact stays unchanged


def test_a_gate_with_a_nan_column_gives_a_nan_score() -> None:
    batch = small([(0, [1])], draw_score=[1.0], draw_x=[math.nan])
    close(column(CombineReward("x", kind="require")(batch)), [math.nan])


@pytest.mark.parametrize("count", ["all", "trained"])
@pytest.mark.parametrize("level", ["draw", "step"])
def test_length_penalty(level: str, count: str) -> None:
    batch = OutcomeScore(level="step")(ragged(2))
    draws = plain(batch)
    positions = batch.column("position", "token")
    expected = []
    for draw in draws:
        for row in [draw] if level == "draw" else draw.steps:
            tokens = draw.tokens if level == "draw" else row.tokens
            length = row.trained if count == "trained" else positions[tokens[-1].row] - positions[tokens[0].row] + 1
            expected.append((row.score if level == "draw" else row.reward) - 0.5 * min(max(length - 2, 0) / 4, 1.5))
    result = LengthPenalty(free=2, full_at=6, coefficient=0.5, at_most=1.5, level=level, count=count)(batch)
    close(column(result, "score" if level == "draw" else "step_score", level), expected)


def test_length_penalty_by_the_success_of_the_group() -> None:
    batch = small([(0, [4]), (0, [2]), (0, [8])], draw_score=[1.0, 0.0, math.nan], draw_success=[1, 0, 1])
    result = LengthPenalty(free=0, full_at=8, at_most=1.0, scale_by="group_mean", only="success")(batch)
    close(column(result), [1.0 - 0.5 * 0.5, 0.0, math.nan])


def test_noise() -> None:
    batch = ragged(1)
    result = NoiseReward(amplitude=0.1)(batch)
    before, after = np.array(column(batch)), np.array(column(result))
    difference = (after - before)[np.isfinite(before)]
    assert np.isnan(after[np.isnan(before)]).all()
    assert (np.abs(difference) <= 0.1 + 1e-6).all()
    assert len(set(np.round(difference, 7))) == len(difference)
    np.testing.assert_array_equal(np.array(column(result, "score_clean")), before)
    order = list(reversed(range(batch.num_draws)))
    np.testing.assert_array_equal(column(NoiseReward(amplitude=0.1)(batch.select_draws(order))), after[order])
    assert column(NoiseReward(amplitude=0.1, seed=1)(batch)) != after.tolist()
    many = small([(0, [1])] * 4000, draw_score=[0.0] * 4000)
    assert abs(np.std(column(NoiseReward(amplitude=0.3, kind="normal")(many))) - 0.3 / math.sqrt(3)) < 0.005


def test_noise_only_where_scores_are_nearly_equal() -> None:
    batch = small([(0, [1]), (0, [1]), (1, [1]), (1, [1])], draw_score=[1.0, 1.0, 0.0, 1.0])
    values = column(NoiseReward(only_if_std_below=0.1)(batch))
    assert values[:2] != [1.0, 1.0]
    assert values[2:] == [0.0, 1.0]


def test_tiers_are_closed_above() -> None:
    batch = small([(0, [1])] * 6, draw_score=[0.0, 0.1, 0.25, 0.26, 1.0, math.nan])
    close(column(RoundUpReward()(batch)), [0.0, 0.25, 0.25, 0.5, 1.0, math.nan])
    with pytest.raises(InvalidInputError, match="give a quality from 0 to 1"):
        RoundUpReward()(batch.with_columns("draw", score=np.full(6, 2.0)))


def test_answers_that_agree() -> None:
    batch = small(
        [(0, [1])] * 6 + [(1, [1])] * 2,
        draw_answer_cluster=[5, 5, 3, 3, 3, 0, 1, 2],
        draw_answer_parsed=[1, 1, 1, 1, 1, 0, 1, 1],
        draw_first=[1, 1, 1, 0, 0, 0, 1, 1],
    )
    shares = [2 / 6, 2 / 6, 0.5, 0.5, 0.5, 0.0]
    entropy = -(2 / 6) * math.log(2 / 6) - 0.5 * math.log(0.5)
    result = AnswerAgreement()(batch)
    close(column(result), [*shares, 0.0, 0.0])
    close(column(result, "semantic_entropy"), [entropy] * 6 + [math.log(2)] * 2)
    close(column(AnswerAgreement(all_distinct_zero=False)(batch)), [*shares, 0.5, 0.5])
    # With equally many votes, the first draw's cluster wins.
    close(column(AnswerAgreement(kind="majority")(batch)), [0, 0, 1, 1, 1, 0, 1, 0])
    close(column(AnswerAgreement(kind="majority", voters="first")(batch)), [1, 1, 0, 0, 0, 0, 1, 0])


def test_best_of_k() -> None:
    batch = small([(0, [1])] * 4, draw_score=[0.0, 1.0, 2.0, 3.0], draw_log_ratio=np.log1p([0.1, -0.2, 0.3, 0.05]))
    close(column(MaxAtK()(batch)), [1.0, 1.0, 7 / 6, 1.5])
    close(column(MaxAtK(kind="leave_one_out")(batch)), [0.0, 1 / 6, 0.5, 1.0])
    close(column(MaxAtK(ratio="log_ratio")(batch)), [1.191667, 0.941667, 1.508333, 1.675])
    close(column(MaxAtK(k=3, ratio="log_ratio")(batch)), [2.4, 2.175, 2.55, 2.6625])
    close(column(MaxAtK(kind="top_gap")(batch)), [0.0, 0.0, 0.0, 1.0])
    spread = np.std([0, 1, 2, 3], ddof=1) + 1e-6
    close(column(MaxAtK(kind="top_gap", scale="std")(batch)), [0.0, 0.0, 0.0, 1.0 / spread])
    unknown = batch.with_columns("draw", score=np.array([0.0, 1.0, 2.0, math.nan]))
    # C(3, 2) = 3 pairs of 0, 1, 2: [C(0,1) 0 + C(0,0) 1 + C(1,0) 2] / 3, [C(1,1) 1 + C(1,0) 2] / 3, C(2,1) 2 / 3.
    close(column(MaxAtK()(unknown)), [1.0, 1.0, 4 / 3, math.nan])
    with pytest.raises(InvalidInputError, match="k"):
        MaxAtK(k=5)(batch)


def test_win_rates() -> None:
    batch = small(
        [(0, [1])] * 3 + [(1, [1])],
        **{
            "draw_preference.0": [math.nan] * 4,
            "draw_preference.1": [1.0, math.nan, math.nan, math.nan],
            "draw_preference.2": [0.5, math.nan, math.nan, math.nan],
        },
    )
    close(column(WinRate()(batch)), [0.75, 0.0, 0.5, 0.5])
    close(column(WinRate(include_self=True)(batch)), [2 / 3, 0.25, 0.5, 0.5])
    # A pair given in both directions counts once, with the mean if both differ: P(0 beats 1) = (1 + 0.6) / 2.
    twice = batch.with_columns("draw", **{"preference.0": np.array([math.nan, 0.4, 0.5, math.nan])})
    close(column(WinRate()(twice)), [(0.8 + 0.5) / 2, 0.2, 0.5, 0.5])
    close(column(WinRate(include_self=True)(twice)), [(0.8 + 0.5 + 0.5) / 3, 0.35, 0.5, 0.5])
    wrong = batch.with_columns("draw", **{"preference.1": np.array([1.0, 0.0, 0.0, 0.5])})
    with pytest.raises(InvalidInputError, match=r"preference\.1 of draw 3 is 0\.5, but its group has 1 draws"):
        WinRate()(wrong)


def test_near_successes() -> None:
    batch = small(
        [(0, [1])] * 5 + [(1, [1])],
        draw_success=[1, 1, 0, 0, 1, 0],
        **{"draw_embedding.0": [3.0, 3.0, 4.0, 5.0, 0.0, 1.0], "draw_embedding.1": [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]},
    )

    def failure(distance: float) -> float:
        return 0.6 / (1.0 + math.exp(-10.0 * (0.5 - distance)))

    close(column(SuccessDistance()(batch)), [1.0, 1.0, failure(0.0), failure(1.0), 0.0, 0.0])
    assert column(SuccessDistance(zero_embedding="keep")(batch))[4] == 1.0


def test_information_gain() -> None:
    batch = small(
        [(0, [1, 1, 1]), (0, [1, 1])],
        draw_score=[1.0, 0.0],
        draw_answer_logprob_before=[-2.5, -3.0],
        step_answer_logprob=[-2.0, -1.0, -0.5, -1.0, math.nan],
    )
    close(column(InformationGain(kind="log_probability")(batch), "gain", "step"), [0.5, 1.0, *[math.nan] * 3])
    first, second = math.exp(-2.0) - math.exp(-2.5), math.exp(-1.0) - math.exp(-2.0)
    result = InformationGain()(batch)
    close(column(result, "gain", "step"), [first, second, *[math.nan] * 3])
    close(column(result, "turn_reward", "step"), [first, second, 1.0, math.nan, 0.0])
    together = Discounted(column="gain", outcome="score")(result)
    close(column(together, "advantage", "step"), [first + second + 1.0, second + 1.0, 1.0, 0.0, 0.0])


def test_information_gain_needs_a_probe() -> None:
    recipe = Recipe(name="mine", reward=(OutcomeScore(), InformationGain()), advantage=GroupRelative(), loss=Policy())
    recipe.check()
    assert recipe.models == ("policy",)
    with pytest.raises(RecipeError, match=r"annotate\(batch, 'answer_logprob', policy, probe=probe\)"):
        recipe.check(small([(0, [1])]))


def test_gains_of_probabilities() -> None:
    probabilities = np.log([0.3, 0.3, 0.6, 0.9])
    before = [math.log(0.1)]
    batch = small(
        [(0, [1] * 4)], draw_score=[1.0], draw_answer_logprob_before=before, step_answer_logprob=probabilities
    )
    close(column(InformationGain()(batch), "gain", "step"), [0.2, 0.0, 0.3, math.nan])


@pytest.mark.parametrize("level", ["token", "step", "draw"])
@pytest.mark.parametrize("scale", ["none", "max_return"])
@pytest.mark.parametrize("seed", range(2))
def test_implicit_rewards(seed: int, scale: str, level: str) -> None:
    batch = ragged(seed)
    rng = np.random.default_rng(seed)
    count = len(batch.column("token", "token"))
    model, reference = -rng.exponential(size=(2, count))
    batch = batch.with_columns("token", reward_model_logprob=model, reward_reference_logprob=reference)
    rows_of = "step" if level == "step" else "token"
    expected = np.full(len(batch.column("step", "step")) if level == "step" else count, np.nan)
    largest = 0.0
    for draw in plain(batch):
        tokens = [token.row for token in draw.tokens if token.trained]
        if level == "step":
            for step in draw.steps:
                rows = [token.row for token in step.tokens if token.trained]
                expected[step.row] = 0.05 * float((model - reference)[rows].sum())
            rows = [step.row for step in draw.steps]
        elif level == "token":
            rows = tokens
            expected[rows] = 0.05 * (model - reference)[rows]
        else:
            rows = tokens[-1:] if draw.valid else []
            expected[rows] = 0.05 * float((model - reference)[tokens].sum())
        to_come = np.cumsum(expected[rows][::-1])
        largest = max(largest, *np.abs(to_come).tolist(), 0.0)
    if scale == "max_return":
        expected = expected / largest
    rewards = column(ImplicitProcess(level=level, scale=scale)(batch), "process_reward", rows_of)
    close(rewards, expected, 1e-5)


def checked(**changes: list[float]) -> Batch:
    """Draw 0 has turns of two steps and one, draw 1 one turn of two; item 1 of turn 0 needs item 0."""
    columns = {
        "step_turn": [0, 0, 1, 0, 0],
        "step_judge_failed": [0] * 5,
        "step_satisfied.0": [1.0, 1.0, 0.0, 0.0, 1.0],
        "step_item_weight.0": [0.5, 0.5, 1.0, 0.5, 0.5],
        "step_item_needs.0": [0.0] * 5,
        "step_satisfied.1": [0.0, 1.0, math.nan, 0.0, 1.0],
        "step_item_weight.1": [0.5, 0.5, math.nan, 0.5, 0.5],
        "step_item_needs.1": [1.0, 1.0, math.nan, 1.0, 1.0],
    }
    return small([(0, [1, 1, 1]), (0, [1, 1])], **(columns | changes))


def test_checklists() -> None:
    result = Checklist(items=2)(checked())
    # Draw 0 earns both items of turn 0, one after the other, and nothing in turn 1. In draw 1 both come at once, and
    # the second item had no chance before the first.
    close(column(result), [(1.0 + 0.0) / 2, 0.5])
    close(column(result, "turn_reward", "step"), [1.0, 1.0, 0.0, 0.5, 0.5])
    close(column(result, "item_reward.0", "step"), [1.0, 0.0, 0.0, 1.0, 1.0])
    close(column(result, "item_eligible.0", "step"), [1.0, 0.0, 1.0, 1.0, 1.0])
    close(column(result, "item_reward.1", "step"), [0.0, 1.0, 0.0, 0.0, 0.0])
    close(column(result, "item_eligible.1", "step"), [0.0, 1.0, 0.0, 0.0, 0.0])
    close(column(Checklist(items=2, delay=0.5)(checked())), [0.5, 0.25])
    with pytest.raises(InvalidInputError, match="'turn' of draw 0 comes back to an earlier turn at step 2"):
        Checklist(items=2)(checked(step_turn=[0, 1, 0, 0, 0]))
    failed = Checklist(items=2)(checked(step_judge_failed=[0, 0, 0, 0, 1]))
    close(column(failed), [0.5, math.nan])


def test_checklists_as_advantages() -> None:
    result = Checklist(items=2)(checked())
    steps = ChecklistRelative(items=2, members_at_least=2)(result)
    # All draws satisfied both items of turn 0; only one draw reached turn 1.
    close(column(steps, "advantage", "step"), [0.0] * 5)
    turns = GroupRelative(
        column="turn_reward", level="step", group_by="group_id,turn", voter="trajectory", scale="none", votes_at_least=2
    )
    close(column(turns(result), "advantage", "step"), [0.25, 0.25, 0.0, -0.25, -0.25])


@pytest.mark.parametrize("kind", ["sum", "mean"])
@pytest.mark.parametrize("seed", range(3))
def test_teams_share_their_score(seed: int, kind: str) -> None:
    batch = ragged(seed)
    teams = np.random.default_rng(seed).integers(0, 3, size=batch.num_draws)
    draws = plain(batch)
    expected = []
    for draw in draws:
        team_scores = [o.score for o in draws if teams[o.row] == teams[draw.row] and o.valid]
        expected.append((sum(team_scores) if kind == "sum" else np.mean(team_scores)) if draw.valid else math.nan)
    result = TeamScore(group_by="team", kind=kind)(batch.with_columns("draw", team=teams))
    close(column(result), expected)


@pytest.mark.parametrize("seed", range(3))
def test_first_visits_are_the_gain_of_a_coverage(seed: int) -> None:
    batch = OutcomeScore(level="step")(ragged(seed))
    rewards = batch.column("reward", "step").astype(float)
    expected = rewards.copy()
    for draw in plain(batch):
        seen: set[int] = set()
        for step in draw.steps:
            if step.state not in seen:
                expected[step.row] = (0.0 if np.isnan(step.reward) else step.reward) + 0.5
            seen.add(step.state)
    result = FirstVisits(coefficient=0.5)(batch)
    close(column(result, "step_score", "step"), expected)
    by_state = FirstVisits(key="agent,state_key", coefficient=0.5)(batch)
    close(column(by_state, "step_score", "step"), expected)


@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_rewarded_for_the_new_state_that_it_leads_to(seed: int) -> None:
    batch = OutcomeScore(level="step")(ragged(seed))
    expected = batch.column("reward", "step").astype(float)
    for draw in plain(batch):
        seen = {draw.steps[0].state}
        for step, after in itertools.pairwise(draw.steps):
            if after.state not in seen:
                expected[step.row] = (0.0 if np.isnan(step.reward) else step.reward) + 1.0
            seen.add(after.state)
    close(column(FirstVisits(of_next=True)(batch), "step_score", "step"), expected)


def test_closeness_and_the_soft_top_by_hand() -> None:
    batch = small([(0, [1])] * 3, draw_dx=[0.0, 3.0, math.nan], draw_dy=[0.0, 4.0, 1.0])
    close(column(GaussianProximity(column="dx,dy", width=5.0)(batch)), [1.0, math.exp(-0.5), math.nan])
    scored = small([(0, [1])] * 5, draw_score=[1.0, 0.8, 0.3, -0.2, math.nan])
    bottom = [(math.exp(2.0 * gap) - 1.0) / (math.exp(2.0) - 1.0) for gap in (0.5, 1.0)]
    expected = [0.8 + 0.1 * math.log(1.2), 0.8, 0.8 - bottom[0], 0.8 - bottom[1], math.nan]
    close(column(CompressHigh(rise=0.1, fall=2.0)(scored)), expected)


def test_components_of_the_reward_go_by_their_names() -> None:
    forest = Forest(reward_components=["format", "correct"])
    forest.add_group(0, "task")
    for member, paid in enumerate(([0.5, 1.0], [0.25, 0.0], None)):
        trajectory = forest.start(0, member)
        for step, rewards in enumerate(([1.0, 2.0], None)):
            forest.append(trajectory, [step], kind="observation" if step else "prompt")
            forest.append(trajectory, [3, 4], kind="action", logprobs=[-1.0, -1.0])
            forest.step(trajectory, reward=1.0, rewards=rewards)
        forest.finish(trajectory, reward=1.0, rewards=paid)
    batch = forest.freeze()
    close(column(batch, "reward.format"), [0.5, 0.25, math.nan])
    close(column(batch, "reward.correct"), [1.0, 0.0, math.nan])
    close(column(batch, "reward.correct", "step"), [2.0, math.nan] * 3)
    close(column(batch, "reward.format", "token"), [1.0, 1.0, math.nan, math.nan] * 3)
    assert not batch.has("reward.other", "draw")
    assert not batch.has("reward.format", "node_token")
    with pytest.raises(NotFoundError, match=r'no column "reward\.other"'):
        batch.column("reward.other", "step")
    # A computed column has priority over the fact, and a selection swaps the last two draws.
    close(column(batch.with_columns("draw", **{"reward.format": [7.0, 8.0, 9.0]}), "reward.format"), [7.0, 8.0, 9.0])
    close(column(batch.select_draws([2, 0]), "reward.format"), [math.nan, 0.5])
    recipe = Recipe(
        name="mine",
        reward=(OutcomeScore(), CombineReward(column="reward.format", coefficient=2.0)),
        advantage=GroupRelative(column="reward.correct", scale="none"),
    )
    result = recipe.credit(batch)
    close(column(result), [2.0, 1.5, math.nan])
    close(column(result, "advantage"), [0.5, -0.5, 0.0])
    small_batch = small([(0, [1])])
    assert not small_batch.has("reward.format", "draw")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TeamScore(group_by=""), "group_by=''"),
        (lambda: FirstVisits(key=""), "key=''"),
        (lambda: GaussianProximity(width=0.0), r"width=0\.0"),
        (lambda: CompressHigh(fall=0.0), r"fall=0\.0"),
        (lambda: CompressHigh(rise=-1.0), r"rise=-1\.0"),
        (lambda: CombineReward(""), "column='' is not possible; name a column"),
        (lambda: CombineReward("x", kind="multiply", at_most=1.0), "at_most=1.0"),
        (lambda: LengthPenalty(free=-1, full_at=5), "free=-1"),
        (lambda: LengthPenalty(free=5, full_at=5), "full_at=5 is not possible; give a number above free=5"),
        (lambda: LengthPenalty(free=5, full_at=6, coefficient=-1.0), "coefficient=-1.0"),
        (lambda: NoiseReward(amplitude=-1.0), "amplitude=-1.0"),
        (lambda: NoiseReward(only_if_std_below=0.0), "only_if_std_below=0.0"),
        (lambda: RoundUpReward(count=0), "count=0"),
        (lambda: MaxAtK(k=0), "k=0"),
        (lambda: MaxAtK(scale="std"), "scale='std'"),
        (lambda: MaxAtK(kind="top_gap", ratio="x"), "ratio='x'"),
        (lambda: SuccessDistance(radius=0.0), "radius=0.0"),
        (lambda: SuccessDistance(at_most=2.0), "at_most=2.0"),
        (lambda: ImplicitProcess(beta=0.0), "beta=0.0"),
        (lambda: Checklist(items=63), "items=63"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_a_score_that_shuns_risk() -> None:
    batch = small([(0, [1])] * 6 + [(1, [1])], draw_score=[0.0, 1.0, 2.0, 3.0, 4.0, math.nan, 7.0])
    # q is 1 at level 1/4, and only the first draw is below it.
    close(column(RiskAverse(coefficient=1.0)(batch)), [-3.0, 1.0, 1.0, 1.0, 1.0, math.nan, 7.0])
    close(column(RiskAverse()(batch)), [-1.5, 1.0, 1.5, 2.0, 2.5, math.nan, 7.0])
    close(column(RiskAverse(coefficient=0.0)(batch)), column(batch))
    with pytest.raises(RecipeError, match=r"option quantile=0.0 is not possible; give a number above 0"):
        RiskAverse(quantile=0.0)


@pytest.mark.parametrize("seed", range(5))
def test_drop_surplus_keeps_no_more_failures_than_successes(seed: int) -> None:
    batch = ragged(seed, members=6)
    result = DropSurplus(seed=seed)(batch)
    scores = column(result)
    for group in {draw.group for draw in plain(batch)}:
        draws = [draw for draw in plain(batch) if draw.group == group and draw.valid]
        if not draws:
            continue
        mean = sum(draw.score for draw in draws) / len(draws)
        worse = [draw.row for draw in draws if draw.score < mean]
        better = [draw.row for draw in draws if draw.score >= mean]
        kept_failures = [row for row in worse if math.isfinite(scores[row])]
        assert len(kept_failures) == min(len(worse), len(better))
        assert all(scores[draw.row] == draw.score for draw in draws if draw.row in (*better, *kept_failures))
    np.testing.assert_array_equal(column(DropSurplus(seed=seed)(batch)), scores)


def test_who_is_left_out_is_chance() -> None:
    batch = small([(0, [1])] * 10, draw_score=[1.0] + [0.0] * 9)
    outcomes = {tuple(np.isfinite(column(DropSurplus(seed=seed)(batch))).tolist()) for seed in range(40)}
    assert len(outcomes) > 5
    assert all(sum(finite) == 2 and finite[0] for finite in outcomes)


def test_flagged_draws_have_no_score() -> None:
    batch = small(
        [(0, [1, 1]), (0, [1]), (0, [1])],
        draw_score=[1.0, 2.0, 3.0],
        step_judge_failed=[0, 1, 0, 0],
        step_late=[0, 0, 1, 0],
        draw_broken=[0, 0, 1],
    )
    close(column(Unscored(flags="judge_failed")(batch)), [math.nan, 2.0, 3.0])
    close(column(Unscored(flags="judge_failed,late")(batch)), [math.nan, math.nan, 3.0])
    close(column(Unscored(flags="broken", level="draw")(batch)), [1.0, 2.0, math.nan])
    with pytest.raises(RecipeError, match="option flags='' is not possible"):
        Unscored(flags="")


def credited(reward: tuple[object, ...], advantage: object, batch: Batch) -> Batch:
    recipe = Recipe(name="row", reward=reward, advantage=advantage, loss=Policy())
    recipe.check(batch)
    return recipe.credit(recipe.score(batch))


def test_score_chains_start_from_the_outcome_reward() -> None:
    batch = small([(0, [1])] * 4, draw_reward=[0.0, 1.0, 2.0, 3.0])
    best = credited((OutcomeScore(), MaxAtK(k=2)), GroupRelative(center="none", scale="none"), batch)
    close(column(best, "advantage"), [1.0, 1.0, 7 / 6, 1.5])
    # The quantile 1/4 is 0.75; the first is below it, at 0.75 - 3: half and half with the score, less the mean.
    careful = credited((OutcomeScore(), RiskAverse()), GroupRelative(scale="none"), batch)
    scores = np.array([(0.0 - 2.25) / 2, (1.0 + 0.75) / 2, (2.0 + 0.75) / 2, (3.0 + 0.75) / 2])
    close(column(careful, "advantage"), scores - scores.mean())


def test_steps_are_credited_with_their_shaped_rewards() -> None:
    batch = small([(0, [1, 6, 3])], draw_reward=[1.0], step_reward=[0.0, 0.0, 1.0], step_tool=[5, 5, 7])
    to_come = Discounted(column="step_score")
    visited = credited((OutcomeScore(), OutcomeScore(level="step"), FirstVisits(key="tool")), to_come, batch)
    close(column(visited, "step_score", "step"), [1.0, 0.0, 2.0])
    close(column(visited, "advantage", "step"), [3.0, 2.0, 2.0])
    priced = LengthPenalty(free=2, full_at=4, coefficient=0.5, level="step")
    charged = credited((OutcomeScore(), OutcomeScore(level="step"), priced), to_come, batch)
    close(column(charged, "advantage", "step"), [-0.25, -0.25, 0.75])
    critic = batch.with_columns("step", value=[0.0, 0.0, 0.0])
    one_step = Gae(level="step", column="step_score", outcome="", lam=0.0)
    close(
        column(credited((OutcomeScore(), OutcomeScore(level="step"), priced), one_step, critic), "advantage", "step"),
        [0, -1, 0.75],
    )
    close(column(batch, "reward", "step"), [0.0, 0.0, 1.0])
    with pytest.raises(RecipeError, match="needs column 'step_score' at level step"):
        Recipe(name="row", reward=(OutcomeScore(), priced), advantage=to_come, loss=Policy()).check()
