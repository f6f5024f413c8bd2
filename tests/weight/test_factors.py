"""Components that scale the weight or edit the advantage, against loops over nested lists and numbers by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rollouts import counted, means, plain, small, with_tokens

from agentrl_core import Batch
from agentrl_core.advantage import GroupRelative
from agentrl_core.exceptions import NotFoundError, RecipeError
from agentrl_core.weight import ColumnScaled, EntropyScaled, ImportanceWeight, MarkedScaled, SignalRescale
from agentrl_core.weight.importance import TrustRegion

SEEDS = st.integers(0, 10**6)


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


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
    close(column(EntropyScaled(coefficient=-0.9, at_least=least)(batch), "weight", "token"), expected, 1e-4)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_draws_by_entropy_relative_to_their_group(seed: int) -> None:
    batch = with_tokens(seed, entropy=1.0)
    entropies, draws = means(batch, "entropy", "draw"), plain(batch)
    if all(value is None for value in entropies):
        return
    expected = []
    for draw, value in zip(draws, entropies, strict=True):
        votes = [v for d, v in zip(draws, entropies, strict=True) if d.group == draw.group and v is not None]
        middle = np.mean(votes) if votes else 0.0
        expected.append(1.0 if value is None else max(1.0 + (middle - value) / middle, 0.0))
    scaled = EntropyScaled(level="draw", kind="relative", group_by="group_id", coefficient=1.0)(batch)
    close(column(scaled, "weight", "draw"), expected)


def test_entropy_by_hand() -> None:
    batch = small([(0, [1]), (0, [1]), (0, [1])], token_entropy=[1.0, 2.0, 3.0])
    relative = EntropyScaled(level="draw", kind="relative", group_by="group_id", coefficient=1.0)
    close(column(relative(batch), "weight", "draw"), [1.5, 1.0, 0.5])
    wide = small([(0, [1]), (0, [1]), (0, [1])], token_entropy=[0.0, 0.0, 9.0])
    assert column(relative(wide), "weight", "draw") == [2.0, 2.0, 0.0]
    public = EntropyScaled(level="draw", kind="relative", group_by="group_id", coefficient=1.0, at_least=None)
    close(column(public(wide), "weight", "draw"), [2.0, 2.0, -1.0])
    same = small([(0, [3])], token_entropy=[0.3, 0.3, 0.3])
    for kind in ("standard_score", "relative"):
        assert column(EntropyScaled(kind=kind)(same), "weight", "token") == [1.0, 1.0, 1.0]


def test_links_multiply_and_the_finer_level_holds() -> None:
    batch = small([(0, [2]), (0, [1])], token_entropy=[1.0, 3.0, 2.0], draw_weight=np.array([2.0, 4.0]))
    step = EntropyScaled(level="draw", kind="relative", coefficient=1.0)(batch)
    assert column(step, "weight", "draw") == [2.0, 4.0]
    token = EntropyScaled(kind="relative", coefficient=1.0)(step)
    close(column(token, "weight", "token"), [3.0, 1.0, 4.0])


# Signs


def test_dead_groups_do_not_shrink_the_step() -> None:
    draws = [(0, [1]), (0, [1]), (1, [1]), (1, [1]), (2, [1])]
    batch = small(draws, draw_score=[1.0, 0.0, 1.0, 1.0, np.nan])
    assert column(SignalRescale()(batch), "weight", "draw") == [2.0] * 5
    assert column(SignalRescale(at_most=1.5)(batch), "weight", "draw") == [1.5] * 5
    close(column(SignalRescale(kind="rows")(batch), "weight", "draw"), [4 / 3] * 5)
    group = SignalRescale(kind="rows", group_by="group_id")(batch)
    assert column(group, "weight", "draw") == [2.0, 2.0, 1.0, 1.0, 1.0]
    dead = small(draws, draw_score=[1.0] * 5)
    assert column(SignalRescale()(dead), "weight", "draw") == [1.0] * 5


def test_gpg_counts_draws_of_groups_without_gradient() -> None:
    """Groups 1, 0.5, 0 and 1, 1: three of five draws, though one has advantage 0; verl counts nonzero scores."""
    draws = [(0, [1]), (0, [1]), (0, [1]), (1, [1]), (1, [1])]
    batch = GroupRelative(scale="none")(small(draws, draw_score=[1.0, 0.5, 0.0, 1.0, 1.0]))
    close(column(SignalRescale(kind="members")(batch), "weight", "draw"), [5 / 3] * 5)
    close(column(SignalRescale(kind="rows", column="advantage")(batch), "weight", "draw"), [5 / 2] * 5)
    close(column(SignalRescale(kind="rows")(batch), "weight", "draw"), [5 / 4] * 5)
    assert column(SignalRescale()(batch), "weight", "draw") == [2.0] * 5


# Columns


def test_given_weights() -> None:
    batch = small([(0, [1, 1]), (0, [1])], draw_task_weight=[1.0, math.nan], draw_score=[1.0, 1.0])
    batch = batch.with_columns("step", extra=[1.0, 3.0, math.nan])
    assert column(ColumnScaled()(batch), "weight", "draw") == [1.0, 1.0]
    twice = ColumnScaled(column="extra", level="step")(ColumnScaled(column="extra", level="step")(batch))
    assert column(twice, "weight", "step") == [1.0, 9.0, 1.0]
    mean = ColumnScaled(column="extra", level="step", mean_one=True)(batch)
    assert column(mean, "weight", "step") == [0.5, 1.5, 1.0]
    with pytest.raises(RecipeError, match="has no finite value"):
        ColumnScaled()(batch.with_columns("draw", task_weight=[math.nan, math.nan]))


def test_durations_by_hand() -> None:
    batch = small([(0, [1, 1]), (0, [1])], step_duration=[1.0, 4.0, np.nan])
    durations = ColumnScaled(column="duration", level="step", mean_one=True, at_least=0.5, at_most=1.5)
    close(column(durations(batch), "weight", "step"), [0.5, 1.5, 1.0])  # of 0.4 and 1.6


def test_weights_that_grow_with_the_advantage() -> None:
    batch = small([(0, [1, 1]), (0, [1]), (0, [1]), (0, [1])], draw_advantage=[1.0, -2.0, 1e9, 3.0])
    batch = batch.with_columns("draw", score=[1.0, 1.0, 1.0, np.nan])
    grown = ColumnScaled(column="advantage", kind="exponential", temperature=2.0, at_most=5.0)
    close(column(grown(batch), "weight", "token"), [math.exp(0.5)] * 2 + [math.exp(-1.0), 5.0, 1.0])
    finer = batch.with_columns("token", advantage=[0.0, math.log(3.0), 0.0, 0.0, 0.0])
    shares = ColumnScaled(column="advantage", level="token", kind="exponential", mean_one=True)
    close(column(shares(finer), "weight", "token"), [4 / 6, 12 / 6, 4 / 6, 4 / 6, 1.0])
    far = batch.with_columns("draw", advantage=[1000.0, 1000.0, 1000.0 - math.log(2.0), 0.0])
    alone = ColumnScaled(column="advantage", kind="exponential", mean_one=True)
    close(column(alone(far), "weight", "draw"), [1.2, 1.2, 0.6, 1.0], 1e-4)


# Tokens


def ratios(batch: Batch) -> NDArray[np.float64]:
    return (batch.column("recomputed_logprob", "token") - batch.column("behaviour_logprob", "token")).astype(float)


LEVELS = ["token", "step", "step_geometric", "sequence", "geometric", "prefix", "prefix_min"]


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(LEVELS), st.sampled_from(["truncate", "mask", "filter", "veto"]))
def test_importance_weights(seed: int, level: str, kind: str) -> None:
    batch = with_tokens(seed, recomputed_logprob=-1.0)
    if not any(counted(batch)):
        return
    logs, expected = ratios(batch), np.ones(len(counted(batch)))
    keep = np.ones(len(expected))
    for draw in plain(batch):
        if not draw.valid:
            continue
        for step in draw.steps if level.startswith("step") else [draw]:
            rows = [token.row for token in step.tokens if token.trained]
            row_logs = logs[rows]
            if level in ("step", "sequence"):
                expected[rows] = np.exp(np.clip(row_logs.sum(), -20, 20))
            elif level in ("step_geometric", "geometric"):
                expected[rows] = np.exp(row_logs.mean()) if rows else 1.0
            elif level == "prefix":
                expected[rows] = np.exp(np.clip(np.cumsum(row_logs), -20, 20))
            elif level == "prefix_min":
                smallest = [1.0, *np.exp(np.minimum.accumulate(row_logs))[:-1]] if rows else []
                expected[rows] = np.exp(row_logs) * smallest
            else:
                expected[rows] = np.exp(row_logs)
        rows = [token.row for token in draw.tokens if token.trained]
        beyond = (expected[rows] < 0.4) | (expected[rows] > 1.5)
        if kind == "veto" and beyond.any():
            keep[rows] = 0.0
        elif kind == "mask":
            expected[rows] = np.where(beyond, 0.0, expected[rows])
        elif kind == "filter":
            expected[rows] = np.where(beyond, 0.0, 1.0)
        elif kind == "truncate":
            expected[rows] = np.clip(expected[rows], 0.4, 1.5)
    result = ImportanceWeight(level=level, kind=kind, at_least=0.4, at_most=1.5)(batch)
    if kind == "veto":
        assert column(result, "keep", "token") == keep.tolist()
        assert not result.has("weight", "token")
    else:
        close(column(result, "weight", "token"), expected)


def test_importance_weights_of_mean_one() -> None:
    batch = small([(0, [2]), (0, [1])], token_recomputed_logprob=[-1.0, -1.0 + math.log(1.5), -1.0 + math.log(3.0)])
    weights = ImportanceWeight(mean_one="token")(batch)
    close(column(weights, "weight", "token"), [2 / 3, 1.0, 4 / 3])
    # Draws have 1.5 (of two tokens) and 2 (of one): their mean is 5/3 over tokens and 7/4 over draws.
    tokens = ImportanceWeight(level="sequence", mean_one="token")(batch)
    close(column(tokens, "weight", "token"), [0.9, 0.9, 1.2])
    draws = ImportanceWeight(level="sequence", mean_one="draw")(batch)
    close(column(draws, "weight", "token"), [6 / 7, 6 / 7, 8 / 7])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_mean_one_as_verl(level: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # verl imports a part of ray that has moved
        helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
    logs = np.array([[0.3, -0.8, 0.1], [1.4, 0.0, 0.0], [-0.2, -0.4, 0.0]])
    mask = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    theirs, _ = helper.compute_rollout_correction_weights(
        torch.tensor(logs), torch.tensor(mask), rollout_is=level, rollout_is_batch_normalize=True
    )
    batch = small([(0, [int(count)]) for count in mask.sum(axis=1)], token_recomputed_logprob=logs[mask > 0] - 1.0)
    ours = ImportanceWeight(level=level, mean_one="draw" if level == "sequence" else "token")(batch)
    close(column(ours, "weight", "token"), theirs.numpy()[mask > 0])


def test_a_geometric_ratio_filter_does_not_change_the_weight_of_kept_tokens() -> None:
    """A17: a chunk of 10 tokens, each with the log-ratio .2: its ratio is e^.2 = 1.2214, not e^2 = 7.39."""
    batch = small([(0, [10])], token_recomputed_logprob=[-0.8] * 10)
    near = ImportanceWeight(level="step_geometric", kind="filter", at_most=2.0)
    assert column(near(batch), "weight", "token") == [1.0] * 10
    close(column(ImportanceWeight(level="step_geometric")(near(batch)), "weight", "token"), [math.exp(0.2)] * 10)
    assert column(ImportanceWeight(level="step", kind="filter")(batch), "weight", "token") == [0.0] * 10


def test_a_filter_of_the_proximal_policy_weighs_nothing() -> None:
    """B20, E20: the clip already has pi_prox / mu; tokens above the cap have weight 0 and stay in the denominator."""
    batch = small([(0, [2])], token_proximal_logprob=[-1.0 + math.log(2.0), -1.0 + math.log(6.0)])
    capped = ImportanceWeight(logprob="proximal_logprob", kind="filter", at_most=5.0)(batch)
    assert column(capped, "weight", "token") == [1.0, 0.0]
    assert not capped.has("keep", "token")
    region = TrustRegion(logprob="proximal_logprob", kind="k1", at_least=-math.log(5.0), denominator="all")(batch)
    assert column(region, "weight", "token") == [1.0, 0.0]
    assert not region.has("keep", "token")


def test_trust_regions() -> None:
    batch = small([(0, [2]), (0, [1])], token_recomputed_logprob=[-1.0, -1.0 + math.log(1.5), -1.0 + math.log(3.0)])
    third = 0.5 * math.log(1.5) ** 2
    near = TrustRegion(kind="k2", at_most=third + 1e-6)
    assert column(near(batch), "keep", "token") == [1.0, 1.0, 0.0]
    far = TrustRegion(kind="k2", at_most=third - 1e-6)
    assert column(far(batch), "keep", "token") == [1.0, 0.0, 0.0]
    rows = TrustRegion(kind="k2", at_most=third - 1e-6, aggregate="max")
    assert column(rows(batch), "keep", "token") == [0.0, 0.0, 0.0]
    mean = TrustRegion(kind="k2", at_most=third - 1e-6, aggregate="mean")
    assert column(mean(batch), "keep", "token") == [1.0, 1.0, 0.0]


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SignalRescale(group_by="group_id"), "option group_by='group_id'"),
        (lambda: SignalRescale(kind="members", group_by="group_id"), "option group_by='group_id'"),
        (lambda: SignalRescale(at_most=0.5), "option at_most=0.5"),
        (lambda: ColumnScaled(at_least=20.0, at_most=10.0), "option at_most=10.0"),
        (lambda: ColumnScaled(kind="exponential"), "option at_most=None is not possible; give the largest factor"),
        (lambda: ColumnScaled(temperature=0.0), "option temperature=0.0"),
        (lambda: ImportanceWeight(at_least=3.0), "option at_most=2.0"),
        (lambda: ImportanceWeight(kind="mask", at_most=None), "option kind='mask'"),
        (lambda: ImportanceWeight(kind="filter", mean_one="token"), "option mean_one='token'"),
        (lambda: TrustRegion(at_least=0.2), "option at_least=0.2"),
    ],
)
def test_impossible_options(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_an_empty_or_missing_column_is_reported() -> None:
    batch = small([(0, [2])], token_entropy=[np.nan, np.nan])
    with pytest.raises(
        RecipeError, match="column 'entropy' has no finite value at any valid row of level token; record it"
    ):
        EntropyScaled()(batch)
    with pytest.raises(NotFoundError, match="thought_entropy"):
        EntropyScaled(column="thought_entropy")(batch)


# Marks


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.sampled_from(["step", "token"]), st.sampled_from(["weight", "keep", "kl_weight", "imitation"]))
def test_marked_rows_are_scaled_by_their_own_factor(seed: int, level: str, of: str) -> None:
    batch = with_tokens(seed)
    rows = int(batch.offsets(level)[-1])
    marks = np.random.default_rng(seed).choice([0.0, 1.0, 2.0, np.nan], rows)
    before = np.random.default_rng(seed + 1).choice([0.0, 0.5], batch.num_draws)
    batch = batch.with_columns(level, mark=marks).with_columns("draw", **{of: before})
    result = MarkedScaled(column="mark", level=level, marked=2.0, plain=0.0, of=of)(batch)
    draws = np.repeat(np.arange(batch.num_draws), np.diff(batch.offsets("step")))
    if level == "token":
        draws = np.repeat(draws, np.diff(batch.offsets("token")))
    expected = [(2.0 if mark in (1.0, 2.0) else 0.0) * before[draw] for mark, draw in zip(marks, draws, strict=True)]
    if of == "keep":
        expected = [float(factor > 0.0) for factor in expected]
    close(column(result, of, level), expected)


def test_marked_rows_by_hand() -> None:
    # Two actions of 2 and 1 tokens; the second draw's one is an image.
    batch = small([(0, [2]), (0, [1])], token_thought=[1.0, 0.0, 0.0], step_image=[0.0, 1.0])
    close(column(MarkedScaled(column="thought", marked=0.5)(batch), "weight", "token"), [0.5, 1.0, 1.0])
    kl = MarkedScaled(column="image", level="step", marked=0.06, plain=0.01, of="kl_weight")(batch)
    close(column(kl, "kl_weight", "token"), [0.01, 0.01, 0.06])
    result = MarkedScaled(column="thought", marked=0.0, of="keep")(batch)
    close(column(result, "keep", "token"), [0.0, 1.0, 1.0])
    weights = result.token_weights([0, 1], keep=result.column("keep", "token") != 0)
    close(weights, [0.0, 0.5, 0.5])  # dropped tokens are in no denominator


def test_marked_and_other_tokens_are_averaged_separately() -> None:
    """By hand: one text token and three image tokens, then two of text; factors 4/1, 4/3 and 2/2 of 0.01 and 0.06."""
    batch = small([(0, [1, 3]), (0, [2])], draw_score=[1.0, 0.0], step_image=[0.0, 1.0, 0.0])
    scaled = MarkedScaled(column="image", level="step", marked=0.06, plain=0.01, of="kl_weight", own_mean=True)(batch)
    close(column(scaled, "kl_weight", "token"), [0.04, 0.08, 0.08, 0.08, 0.01, 0.01])
    with pytest.raises(RecipeError, match="own_mean=True is not possible; give False, or of='kl_weight'"):
        MarkedScaled(column="image", own_mean=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": ""}, "option column='' is not possible"),
        ({"column": "thought", "marked": -1.0}, "option marked=-1.0 is not possible"),
        ({"column": "thought", "of": "keep"}, "with of='keep', give 0 to one of marked and plain=1.0, not to both"),
        ({"column": "thought", "of": "advantage"}, "option of='advantage' is not possible"),
    ],
)
def test_impossible_marks(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        MarkedScaled(**options)
