"""Components that scale the weight or edit the advantage, against loops over nested lists and numbers made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rollouts import counted, means, plain, ragged, small, with_tokens

from agentrl_core import Batch, Forest
from agentrl_core.advantage import GroupRelative
from agentrl_core.exceptions import NotFoundError, RecipeError
from agentrl_core.weight import (
    AdvantageExponential,
    AnswerEntropyScaled,
    ColumnScaled,
    ConflictTokens,
    DurationScaled,
    EntropyScaled,
    ImportanceWeight,
    InputDependency,
    LiveRescale,
    NegativeByConfidence,
    NegativeBySuccess,
    TrustRegion,
)

SEEDS = st.integers(0, 10**6)


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(found: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# Entropy


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.sampled_from([0.0, None]))
def test_tokens_by_standard_score_of_entropy(seed: int, least: float | None) -> None:
    batch = with_tokens(seed, entropy=1.0)
    entropy, there = batch.column("entropy", "token").astype(float), np.array(counted(batch))
    if not there.any():
        return
    votes = entropy[there]
    expected = np.ones(len(entropy))
    if len(votes) > 1:
        expected[there] = 1.0 - 0.9 * (votes - votes.mean()) / votes.std(ddof=1)
    if least is not None:
        expected = np.maximum(expected, least)
    close(column(EntropyScaled(strength=-0.9, least=least)(batch), "weight", "token"), expected, 1e-4)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_draws_by_entropy_relative_to_their_group(seed: int) -> None:
    batch = with_tokens(seed, entropy=1.0)
    own, draws = means(batch, "entropy", "draw"), plain(batch)
    if all(value is None for value in own):
        return
    expected = []
    for draw, value in zip(draws, own, strict=True):
        votes = [v for d, v in zip(draws, own, strict=True) if d.group == draw.group and v is not None]
        middle = np.mean(votes) if votes else 0.0
        expected.append(1.0 if value is None else max(1.0 + (middle - value) / middle, 0.0))
    scaled = EntropyScaled(level="draw", normalise="relative", scope="group", strength=1.0)(batch)
    close(column(scaled, "weight", "draw"), expected)


def test_entropy_by_hand() -> None:
    batch = small([(0, [1]), (0, [1]), (0, [1])], token_entropy=[1.0, 2.0, 3.0])
    relative = EntropyScaled(level="draw", normalise="relative", scope="group", strength=1.0)
    close(column(relative(batch), "weight", "draw"), [1.5, 1.0, 0.5])
    wide = small([(0, [1]), (0, [1]), (0, [1])], token_entropy=[0.0, 0.0, 9.0])
    assert column(relative(wide), "weight", "draw") == [2.0, 2.0, 0.0]
    public = EntropyScaled(level="draw", normalise="relative", scope="group", strength=1.0, least=None)
    close(column(public(wide), "weight", "draw"), [2.0, 2.0, -1.0])
    same = small([(0, [3])], token_entropy=[0.3, 0.3, 0.3])
    for normalise in ("standard_score", "relative"):
        assert column(EntropyScaled(normalise=normalise)(same), "weight", "token") == [1.0, 1.0, 1.0]


def test_links_multiply_and_the_finer_level_holds() -> None:
    batch = small([(0, [2]), (0, [1])], token_entropy=[1.0, 3.0, 2.0], draw_weight=np.array([2.0, 4.0]))
    step = EntropyScaled(level="draw", normalise="relative", strength=1.0)(batch)
    assert column(step, "weight", "draw") == [2.0, 4.0]
    token = EntropyScaled(normalise="relative", strength=1.0)(step)
    close(column(token, "weight", "token"), [3.0, 1.0, 4.0])


@pytest.mark.parametrize(
    ("clusters", "shape", "factor"),
    [
        ([0] * 4 + [1] * 4, "inverse", 0.986291),
        ([0] * 4 + [1] * 4, "exponential", 0.986196),
        (list(range(8)), "inverse", 0.959969),
        (list(range(8)), "exponential", 0.959157),
        (list(range(8)), "linear", 1 - 0.0417),
        (list(range(8)), "focal", (1 - 0.0417) ** 2),
        ([0] * 8, "linear", 1.0),
    ],
)
def test_disagreement_of_answers_by_hand(clusters: list[int], shape: str, factor: float) -> None:
    batch = small([(0, [1])] * 8, draw_answer_cluster=np.array(clusters), draw_answer_parsed=np.ones(8, dtype=np.uint8))
    for measure in ("sampled", "entropy"):
        close(column(AnswerEntropyScaled(measure=measure, shape=shape)(batch), "weight", "draw"), [factor] * 8, 1e-6)


def test_the_two_measures_of_disagreement_differ() -> None:
    batch = small(
        [(0, [1])] * 4, draw_answer_cluster=np.array([0, 0, 0, 1]), draw_answer_parsed=np.ones(4, dtype=np.uint8)
    )
    sampled = -(math.log(0.75) + math.log(0.25)) / 2
    exact = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    for measure, entropy in (("sampled", sampled), ("entropy", exact)):
        found = AnswerEntropyScaled(measure=measure, strength=1.0)(batch)
        close(column(found, "weight", "draw"), [1.0 - entropy / math.log(4)] * 4)


# Signs


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_negatives_by_success_of_the_group(seed: int) -> None:
    batch = GroupRelative()(ragged(seed))
    draws, advantage = plain(batch), batch.column("advantage", "draw")
    expected = []
    for draw in draws:
        scores = [other.score for other in draws if other.group == draw.group and other.valid]
        factor = min(max(0.1 + 0.4 * np.mean(scores), 0.0), 1.0) if scores else 1.0
        expected.append(factor if advantage[draw.row] < 0 else 1.0)
    close(column(NegativeBySuccess(base=0.1, slope=0.4)(batch), "weight", "draw"), expected)


def test_signs_by_hand() -> None:
    batch = small([(0, [1]), (0, [3])], draw_score=[0.0, 0.0])
    finer = batch.with_columns("token", advantage=np.array([1.0, -1.0, 0.0, -1.0], np.float32))
    assert column(NegativeBySuccess()(finer), "weight", "token") == [1.0, 0.5, 1.0, 0.5]
    for mean, factor in ((0.0, 0.5), (0.1, 0.65), (0.25, 0.875), (1 / 3, 1.0), (0.5, 1.0)):
        failed = small([(0, [1])], draw_advantage=[-1.0], draw_score=[mean])
        close(column(NegativeBySuccess()(failed), "weight", "draw"), [factor], 1e-6)


@pytest.mark.parametrize(
    ("shift", "shape", "factor"),
    [
        (-5.0, "softplus", 1.006715),
        (0.0, "softplus", 1.693147),
        (2.0, "softplus", 3.126928),
        (10.0, "softplus", 5.0),
        (-5.0, "relu", 1.0),
        (2.0, "relu", 3.0),
    ],
)
def test_negatives_by_confidence_by_hand(shift: float, shape: str, factor: float) -> None:
    reference = [-1.0 - shift / 2] * 2
    batch = small([(0, [2]), (0, [2])], draw_advantage=[-1.0, 1.0], token_reference_logprob=reference * 2)
    close(column(NegativeByConfidence(shape=shape)(batch), "weight", "draw"), [factor, 1.0])
    halved = NegativeByConfidence(shape="relu", length="mean", most=100.0)(batch)
    close(column(halved, "weight", "draw"), [1.0 + max(shift / 2, 0.0), 1.0])


def test_dead_groups_do_not_shrink_the_step() -> None:
    draws = [(0, [1]), (0, [1]), (1, [1]), (1, [1]), (2, [1])]
    batch = small(draws, draw_score=[1.0, 0.0, 1.0, 1.0, np.nan])
    assert column(LiveRescale()(batch), "weight", "draw") == [2.0] * 5
    assert column(LiveRescale(most=1.5)(batch), "weight", "draw") == [1.5] * 5
    close(column(LiveRescale(by="rows")(batch), "weight", "draw"), [4 / 3] * 5)
    group = LiveRescale(by="rows", scope="group")(batch)
    assert column(group, "weight", "draw") == [2.0, 2.0, 1.0, 1.0, 1.0]
    dead = small(draws, draw_score=[1.0] * 5)
    assert column(LiveRescale()(dead), "weight", "draw") == [1.0] * 5


# Tokens


def ratios(batch: Batch) -> NDArray[np.float64]:
    return (batch.column("recomputed_logprob", "token") - batch.column("behaviour_logprob", "token")).astype(float)


LEVELS = ["token", "step", "step_geometric", "sequence", "geometric", "prefix", "prefix_min"]


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(LEVELS), st.sampled_from(["truncate", "mask", "veto"]))
def test_importance_weights(seed: int, level: str, action: str) -> None:
    batch = with_tokens(seed, recomputed_logprob=-1.0)
    if not any(counted(batch)):
        return
    logs, expected = ratios(batch), np.ones(len(counted(batch)))
    kept = np.ones(len(expected))
    for draw in plain(batch):
        if not draw.valid:
            continue
        for step in draw.steps if level.startswith("step") else [draw]:
            rows = [token.row for token in step.tokens if token.trained]
            own = logs[rows]
            if level in ("step", "sequence"):
                expected[rows] = np.exp(np.clip(own.sum(), -20, 20))
            elif level in ("step_geometric", "geometric"):
                expected[rows] = np.exp(own.mean()) if rows else 1.0
            elif level == "prefix":
                expected[rows] = np.exp(np.clip(np.cumsum(own), -20, 20))
            elif level == "prefix_min":
                smallest = [1.0, *np.exp(np.minimum.accumulate(own))[:-1]] if rows else []
                expected[rows] = np.exp(own) * smallest
            else:
                expected[rows] = np.exp(own)
        rows = [token.row for token in draw.tokens if token.trained]
        beyond = (expected[rows] < 0.4) | (expected[rows] > 1.5)
        if action == "veto" and beyond.any():
            kept[rows] = 0.0
        elif action == "mask":
            expected[rows] = np.where(beyond, 0.0, expected[rows])
        elif action == "truncate":
            expected[rows] = np.clip(expected[rows], 0.4, 1.5)
    made = ImportanceWeight(level=level, action=action, lower=0.4, upper=1.5)(batch)
    if action == "veto":
        assert column(made, "keep", "token") == kept.tolist()
        assert not made.has("weight", "token")
    else:
        close(column(made, "weight", "token"), expected)


def test_importance_weights_of_mean_one_and_trust_regions() -> None:
    batch = small([(0, [2]), (0, [1])], token_recomputed_logprob=[-1.0, -1.0 + math.log(1.5), -1.0 + math.log(3.0)])
    close(column(ImportanceWeight(mean_one=True)(batch), "weight", "token"), [2 / 3, 1.0, 4 / 3])
    third = 0.5 * math.log(1.5) ** 2
    near = TrustRegion(divergence="k2", upper=third + 1e-6)
    assert column(near(batch), "keep", "token") == [1.0, 1.0, 0.0]
    far = TrustRegion(divergence="k2", upper=third - 1e-6)
    assert column(far(batch), "keep", "token") == [1.0, 0.0, 0.0]
    rows = TrustRegion(divergence="k2", upper=third - 1e-6, aggregate="max")
    assert column(rows(batch), "keep", "token") == [0.0, 0.0, 0.0]
    mean = TrustRegion(divergence="k2", upper=third - 1e-6, aggregate="mean")
    assert column(mean(batch), "keep", "token") == [1.0, 1.0, 0.0]


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_dependency_on_the_input(seed: int) -> None:
    batch = with_tokens(seed, perturbed_logprob=-1.0)
    there = np.array(counted(batch))
    if not there.any():
        return
    gap = np.clip((batch.column("perturbed_logprob", "token") - batch.column("behaviour_logprob", "token")), -20, 20)
    dependency = np.minimum(np.exp(gap.astype(float)) - gap - 1.0, 10.0)
    made = InputDependency()(batch)
    close(batch_values := np.array(column(made, "dependency", "token"))[there], dependency[there], 1e-4)
    assert (batch_values >= 0.0).all()
    own = means(made, "dependency", "draw")
    known = [value for value in own if value is not None]
    span = max(known) - min(known)
    weights = column(made, "weight", "draw")
    if span == 0.0:
        assert weights == [1.0] * len(weights)
        return
    scaled = [None if value is None else (value - min(known)) / span for value in own]
    middle = np.mean([value for value in scaled if value is not None])
    expected = [1.0 if value is None else 0.9 + 0.1 * value / middle for value in scaled]
    close(weights, expected, 1e-4)
    close(np.mean([w for w, value in zip(weights, own, strict=True) if value is not None]), 1.0, 1e-5)


def test_conflicting_tokens_by_hand() -> None:
    batch = small([(0, [3]), (0, [2, 1]), (0, [2]), (1, [1])], draw_advantage=[1.0, -1.0, 0.0, 1.0])
    ends = ConflictTokens(positive=3.0, negative=0.5)(batch)
    assert column(ends, "weight", "token") == [9.0] * 3 + [0.25] * 3 + [1.0] * 3
    start = ConflictTokens(positive=3.0, negative=0.5, both_ends=False)(batch)
    assert column(start, "weight", "token") == [3.0] * 3 + [0.5] * 3 + [1.0] * 3
    agreed = batch.with_columns("draw", advantage=np.ones(4, np.float32))
    assert column(ConflictTokens()(agreed), "weight", "token") == [1.0] * 9
    # Each of the three tokens of the first two draws conflicts; the others have none to be divided by.
    counted = column(
        ConflictTokens(positive=3.0, negative=0.5, both_ends=False, per_count=True)(batch), "weight", "token"
    )
    close(counted, [1.0] * 3 + [0.5 / 3] * 3 + [1.0] * 3)


def test_weights_that_grow_with_the_advantage() -> None:
    batch = small([(0, [1, 1]), (0, [1]), (0, [1]), (0, [1])], draw_advantage=[1.0, -2.0, 1e9, 3.0])
    batch = batch.with_columns("draw", score=[1.0, 1.0, 1.0, np.nan])
    made = AdvantageExponential(temperature=2.0, most=5.0)(batch)
    close(column(made, "weight", "token"), [math.exp(0.5)] * 2 + [math.exp(-1.0), 5.0, 1.0])
    for options, message in (({"temperature": 0.0}, r"temperature=0\.0"), ({"most": 0.0}, r"most=0\.0")):
        with pytest.raises(RecipeError, match=message):
            AdvantageExponential(**options)


def test_given_weights() -> None:
    batch = small([(0, [1, 1]), (0, [1])], draw_task_weight=[1.0, math.nan], draw_score=[1.0, 1.0])
    batch = batch.with_columns("step", extra=[1.0, 3.0, math.nan])
    assert column(ColumnScaled()(batch), "weight", "draw") == [1.0, 1.0]
    twice = ColumnScaled(column="extra", level="step")(ColumnScaled(column="extra", level="step")(batch))
    assert column(twice, "weight", "step") == [1.0, 9.0, 1.0]
    mean = ColumnScaled(column="extra", level="step", mean_one=True)(batch)
    assert column(mean, "weight", "step") == [0.5, 1.5, 1.0]
    with pytest.raises(RecipeError, match="has no known value"):
        ColumnScaled()(batch.with_columns("draw", task_weight=[math.nan, math.nan]))


def test_conflict_tokens_of_both_ends_count_once() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    for member, tokens in enumerate([[5, 6, 7, 9], [5, 8, 8, 9]]):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1], kind="prompt")
        forest.append(trajectory, tokens, kind="action", logprobs=[-1.0] * 4)
        forest.finish(trajectory, reward=0.0)
    batch = forest.freeze().with_columns("draw", score=[1.0, 0.0], advantage=[1.0, -1.0])
    found = column(ConflictTokens(per_count=True)(batch), "weight", "token")
    assert found == [1.0, 0.5, 0.5, 1.0, 0.0, 0.5, 0.5, 0.0]


def test_durations_by_hand() -> None:
    batch = small([(0, [1, 1]), (0, [1])], step_duration=[1.0, 4.0, np.nan])
    close(column(DurationScaled(least=0.5, most=1.5)(batch), "weight", "step"), [0.5, 1.5, 1.0])


# What is not possible


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AnswerEntropyScaled(strength=2.0), "option strength=2.0"),
        (lambda: NegativeByConfidence(most=0.5), "option most=0.5"),
        (lambda: LiveRescale(scope="group"), "option scope='group'"),
        (lambda: InputDependency(least=2.0), "option least=2.0"),
        (lambda: ImportanceWeight(lower=3.0), "option upper=2.0"),
        (lambda: ImportanceWeight(action="mask", upper=None), "option action='mask'"),
        (lambda: TrustRegion(lower=0.2), "option lower=0.2"),
        (lambda: DurationScaled(least=20.0), "option most=10.0"),
    ],
)
def test_impossible_options(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_a_column_that_nobody_filled() -> None:
    batch = small([(0, [2])], token_entropy=[np.nan, np.nan])
    with pytest.raises(RecipeError, match="column 'entropy' at level token has no known value; record it"):
        EntropyScaled()(batch)
    with pytest.raises(NotFoundError, match="thought_entropy"):
        EntropyScaled(column="thought_entropy")(batch)
