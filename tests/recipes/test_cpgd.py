"""Clipped log-ratios and their drift, one token at a time."""

from __future__ import annotations

import math

import pytest
import torch
from cases import Case, agree, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.cpgd import BoundedDrift, LogClipped


def cpgd(case: Case, _: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, d = case.advantage[t], logprob[t] - case.old_logprob[t]
    clipped = torch.minimum(d * a, d.clamp(math.log(0.8), math.log(1.2)) * a)
    return clipped - 0.01 * min(math.expm1(d.item()), 0.2) * logprob[t]


@pytest.mark.parametrize("seed", [0, 1])
def test_one_token_at_a_time(seed: int) -> None:
    case = Case.random(seed)
    agree(loss.Policy(surrogate=LogClipped(), drift=BoundedDrift(0.01)), case, transcribed(case, cpgd))
