"""GTPO: conflicts are decided before the entropy is subtracted, and draws that are too uncertain still count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rollouts import small

from agentrl_core import Batch, Forest
from agentrl_core.recipes.gtpo import GTPO, ConflictTokens, EntropyGate
from agentrl_core.update.minibatches import Updates


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_conflicting_tokens_by_hand() -> None:
    batch = small([(0, [3]), (0, [2, 1]), (0, [2]), (1, [1])], draw_score=[1.0, -1.0, 0.0, 1.0])
    ends = ConflictTokens(positive=3.0, negative=0.5)(batch)
    assert column(ends, "weight", "token") == [9.0] * 3 + [0.25] * 3 + [1.0] * 3
    start = ConflictTokens(positive=3.0, negative=0.5, both_ends=False)(batch)
    assert column(start, "weight", "token") == [3.0] * 3 + [0.5] * 3 + [1.0] * 3
    agreed = batch.with_columns("draw", score=np.ones(4, np.float32))
    assert column(ConflictTokens()(agreed), "weight", "token") == [1.0] * 9
    # Each of the three tokens of the first two draws conflicts; the others have nothing to be divided by.
    weights = column(
        ConflictTokens(positive=3.0, negative=0.5, both_ends=False, per_count=True)(batch), "weight", "token"
    )
    close(weights, [1.0] * 3 + [0.5 / 3] * 3 + [1.0] * 3)


def test_conflict_tokens_of_both_ends_count_once() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    for member, tokens in enumerate([[5, 6, 7, 9], [5, 8, 8, 9]]):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1], kind="prompt")
        forest.append(trajectory, tokens, kind="action", logprobs=[-1.0] * 4)
        forest.finish(trajectory, reward=0.0)
    batch = forest.freeze().with_columns("draw", score=[1.0, 0.0])
    weights = column(ConflictTokens(per_count=True)(batch), "weight", "token")
    assert weights == [1.0, 0.5, 0.5, 1.0, 0.0, 0.5, 0.5, 0.0]


def test_conflicts_are_those_of_the_rewards() -> None:
    """Rewards 1, .5, 0 with the same first token: 2, 1, 0, though the entropy makes the middle advantage negative."""
    batch = small([(0, [1]), (0, [1]), (0, [1])], token_entropy=[0.6] * 3)
    batch = batch.with_columns("draw", score=[1.0, 0.5, 0.0])
    recipe = GTPO.replace(weight=ConflictTokens(both_ends=False))
    credited = recipe.credit(batch)
    close(column(credited, "advantage", "draw"), [0.44, -0.06, -0.56])
    assert column(credited, "weight", "token") == [2.0, 1.0, 0.0]


def test_a_positive_draw_stays_one_where_its_advantage_is_below_its_entropy() -> None:
    """One failure in 16: A of the others is .0625, and 0.1 H is more."""
    batch = small([(0, [1])] * 16, token_entropy=[0.65] * 16)
    batch = batch.with_columns("draw", score=[0.0] + [1.0] * 15)
    credited = GTPO.replace(weight=ConflictTokens(both_ends=False)).credit(batch)
    assert max(column(credited, "advantage", "draw")) < 0.0
    assert column(credited, "weight", "token") == [0.0] + [2.0] * 15


def test_a_draw_that_is_too_unsure_counts_in_the_mean() -> None:
    batch = small([(0, [1]), (0, [2]), (0, [1])], token_entropy=[0.1, 0.7, 0.7, math.log(2.0)])
    batch = batch.with_columns("draw", score=[1.0, 0.5, 0.0])
    credited = GTPO.replace(weight=None).credit(batch)
    close(column(credited, "advantage", "draw"), [0.49, 0.0, -0.5 - 0.1 * math.log(2.0)])
    assert not credited.has("keep", "token")
    (update,) = Updates(credited, GTPO.replace(weight=None).losses(), metrics_of_all=True)
    total = sum(pack.streams.weight_kl.sum().item() for pack in update.pack(max_tokens=50))
    pulls = sum(pack.streams.advantage_positive.sum().item() for pack in update.pack(max_tokens=50))
    assert total == pytest.approx(1.0)
    assert pulls == pytest.approx(0.49 / 3, abs=1e-6)


def test_another_threshold() -> None:
    batch = small([(0, [1])], draw_advantage=[1.0], token_entropy=[0.697])
    assert column(EntropyGate()(batch), "advantage", "draw") == [0.0]
    assert column(EntropyGate(at_most=0.7)(batch), "advantage", "draw") == [1.0]
