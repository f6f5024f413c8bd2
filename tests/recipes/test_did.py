"""The information of log-ratios."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl_core.recipes.did import differential_information


def test_differential_information() -> None:
    ratios = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64)
    assert differential_information(ratios).item() == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert differential_information(ratios[:1]).item() == 0.0
