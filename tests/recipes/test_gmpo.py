"""The geometric mean of clipped ratios."""

from __future__ import annotations

import pytest
import torch

from agentrl_core import loss
from agentrl_core.recipes.gmpo import GeometricMean


def test_geometric_mean_fixture() -> None:
    """d = (0.1, 0.8, -0.9), epsilon 0.4: A > 0 gives R = 0.875173, A < 0 gives 1.181360."""
    for advantage, expected in ((1.0, 0.875173), (-1.0, 1.181360)):
        streams = {
            "old_logprob": torch.full((3,), -2.0, dtype=torch.float64),
            "weight_kl": torch.full((3,), 1 / 3, dtype=torch.float64),
            "advantage_positive": torch.full((3,), max(advantage, 0.0) / 3, dtype=torch.float64),
            "advantage_negative": torch.full((3,), min(advantage, 0.0) / 3, dtype=torch.float64),
            "sequence": torch.zeros(3, dtype=torch.int64),
        }
        policy = loss.Policy(clip=loss.Clip(0.4, 0.4, scale="log"), surrogate=GeometricMean())
        logprob = torch.tensor([-1.9, -1.2, -2.9], dtype=torch.float64)
        value, _ = policy.evaluate(loss.Tokens(logprob, None, streams))
        assert value.item() == pytest.approx(-advantage * expected, abs=1e-6)
