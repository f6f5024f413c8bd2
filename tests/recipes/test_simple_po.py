"""The quadratic penalty, one token at a time."""

from __future__ import annotations

import pytest
from cases import Case, agree, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.simple_po import Quadratic


def spo(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    return a * r - a.abs() * (r - 1.0) ** 2 / (2.0 * 0.2)


@pytest.mark.parametrize("seed", [0, 1])
def test_one_token_at_a_time(seed: int) -> None:
    case = Case.random(seed)
    agree(loss.Policy(surrogate=Quadratic()), case, transcribed(case, spo))
