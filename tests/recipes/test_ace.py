"""ACE: errors of which the policy became confident get a larger gradient, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from rollouts import small

from agentrl_core import Batch
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.ace import NegativeByConfidence


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("shift", "kind", "factor"),
    [
        (-5.0, "softplus", 1.006715),
        (0.0, "softplus", 1.693147),
        (2.0, "softplus", 3.126928),
        (10.0, "softplus", 11.000045),
        (-5.0, "relu", 1.0),
        (2.0, "relu", 3.0),
    ],
)
def test_negatives_by_confidence_by_hand(shift: float, kind: str, factor: float) -> None:
    reference = [-1.0 - shift / 2] * 2
    batch = small([(0, [2]), (0, [2])], draw_advantage=[-1.0, 1.0], token_reference_logprob=reference * 2)
    close(column(NegativeByConfidence(kind=kind)(batch), "weight", "draw"), [factor, 1.0])
    bounded = NegativeByConfidence(kind=kind, at_most=2.5)(batch)
    close(column(bounded, "weight", "draw"), [min(factor, 2.5), 1.0])
    halved = NegativeByConfidence(kind="relu", length="mean")(batch)
    close(column(halved, "weight", "draw"), [1.0 + max(shift / 2, 0.0), 1.0])


def test_impossible_options() -> None:
    with pytest.raises(RecipeError, match=r"option at_most=0\.5"):
        NegativeByConfidence(at_most=0.5)
