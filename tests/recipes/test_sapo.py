"""The sigmoid in place of a clip, one token at a time."""

from __future__ import annotations

import pytest
import torch
from cases import Case, agree, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.sapo import Smooth


def sapo(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    tau = 1.0 if a > 0 else 1.05
    return a * torch.sigmoid(tau * (r - 1.0)) * 4.0 / tau


@pytest.mark.parametrize("seed", [0, 1])
def test_one_token_at_a_time(seed: int) -> None:
    case = Case.random(seed)
    agree(loss.Policy(clip=None, surrogate=Smooth()), case, transcribed(case, sapo))
