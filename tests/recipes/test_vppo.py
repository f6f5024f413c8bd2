"""VPPO: draws that depend more on their images get more weight, compared with a loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import counted, means, with_tokens

from agentrl_core import Batch
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.vppo import InputDependency

SEEDS = st.integers(0, 10**6)


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_dependency_on_the_input(seed: int) -> None:
    batch = with_tokens(seed, perturbed_logprob=-1.0)
    there = np.array(counted(batch))
    if not there.any():
        return
    gap = np.clip((batch.column("perturbed_logprob", "token") - batch.column("behaviour_logprob", "token")), -20, 20)
    dependency = np.minimum(np.exp(gap.astype(float)) - gap - 1.0, 10.0)
    weighted = InputDependency()(batch)
    close(batch_values := np.array(column(weighted, "dependency", "token"))[there], dependency[there], 1e-4)
    assert (batch_values >= 0.0).all()
    draw_means = means(weighted, "dependency", "draw")
    finite = [value for value in draw_means if value is not None]
    span = max(finite) - min(finite)
    weights = column(weighted, "weight", "draw")
    if span == 0.0:
        assert weights == [1.0] * len(weights)
        return
    scaled = [None if value is None else (value - min(finite)) / span for value in draw_means]
    middle = np.mean([value for value in scaled if value is not None])
    expected = [1.0 if value is None else 0.9 + 0.1 * value / middle for value in scaled]
    close(weights, expected, 1e-4)
    close(np.mean([w for w, value in zip(weights, draw_means, strict=True) if value is not None]), 1.0, 1e-5)


def test_impossible_options() -> None:
    with pytest.raises(RecipeError, match=r"option at_least=2\.0"):
        InputDependency(at_least=2.0)
