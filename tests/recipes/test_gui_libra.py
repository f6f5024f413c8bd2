"""GUI-Libra: compare negatives scaled by the success of their group with loops and with numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import plain, ragged, small

from agentrl_core import Batch, loss
from agentrl_core.advantage import GroupRelative
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.gui_libra import NegativeBySuccess

SEEDS = st.integers(0, 10**6)


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


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


def test_invalid_uses_of_normalised_imitation_are_refused() -> None:
    with pytest.raises(RecipeError, match="use tokens='expert' or tokens='imitation'"):
        loss.Imitation(tokens="positive", normalised=True)
    weighted = loss.Imitation("token_mean", tokens="imitation", normalised=True)
    with pytest.raises(RecipeError, match="give it the denominator"):
        loss.Sum(loss.Policy(aggregate="token_mean"), weighted)
    assert weighted.normaliser == "imitation"
