"""Compare weights by the change of entropy with the published formula."""

from __future__ import annotations

import math

import pytest
import torch
from cases import Case, agree, gated

from agentrl_core import loss
from agentrl_core.recipes.steer import EntropyChange


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_steer(kind: str) -> None:
    case = Case.random(11)
    p, old = case.logprob.exp(), case.old_logprob.exp()
    change = (case.advantage / old * p * (1 - p) * (p.log() + case.entropy)).abs()
    if kind == "linear":
        weight = 1.2 - (change - change.min()) * 0.4 / (change.max() - change.min())
    else:
        weight = torch.exp(math.log(0.8) / change.max().item() * change)
    agree(loss.Policy(mask=EntropyChange(kind)), case, gated(case, weight))


def test_steer_fixture() -> None:
    """p = p_old = 0.9, H = 0.5, A = 1: the change is 0.0394639; against p = 0.5, H = log 2, whose change is 0."""
    streams = {
        "old_logprob": torch.tensor([0.9, 0.5], dtype=torch.float64).log(),
        "weight_kl": torch.ones(2, dtype=torch.float64),
        "advantage_positive": torch.ones(2, dtype=torch.float64),
        "advantage_negative": torch.zeros(2, dtype=torch.float64),
    }
    entropy = torch.tensor([0.5, math.log(2.0)], dtype=torch.float64)
    tokens = loss.Tokens(streams["old_logprob"], entropy, streams)
    weight, _ = EntropyChange("exponential", 0.8)(tokens, torch.zeros(2), loss.ClipBounds())
    assert weight.tolist() == pytest.approx([0.8, 1.0])
    assert -math.log(weight[0].item()) / (-math.log(0.8) / 0.0394639) == pytest.approx(0.0394639, abs=1e-7)
