"""SEED-GRPO: tasks with diverse answers get less weight, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rollouts import small

from agentrl_core import Batch
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.seed_grpo import AnswerEntropyScaled


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("clusters", "kind", "factor"),
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
def test_disagreement_of_answers_by_hand(clusters: list[int], kind: str, factor: float) -> None:
    batch = small([(0, [1])] * 8, draw_answer_cluster=np.array(clusters), draw_answer_parsed=np.ones(8, dtype=np.uint8))
    for entropy in ("sampled", "exact"):
        close(column(AnswerEntropyScaled(entropy=entropy, kind=kind)(batch), "weight", "draw"), [factor] * 8, 1e-6)


def test_the_two_measures_of_disagreement_differ() -> None:
    batch = small(
        [(0, [1])] * 4, draw_answer_cluster=np.array([0, 0, 0, 1]), draw_answer_parsed=np.ones(4, dtype=np.uint8)
    )
    sampled = -(math.log(0.75) + math.log(0.25)) / 2
    exact = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    for kind, entropy in (("sampled", sampled), ("exact", exact)):
        weighted = AnswerEntropyScaled(entropy=kind, coefficient=1.0)(batch)
        close(column(weighted, "weight", "draw"), [1.0 - entropy / math.log(4)] * 4)


def test_impossible_options() -> None:
    with pytest.raises(RecipeError, match=r"option coefficient=2\.0"):
        AnswerEntropyScaled(coefficient=2.0)
