"""Compare the minimum over a prefix with a loop."""

from __future__ import annotations

import pytest
import torch
from cases import Case, agree, ppo
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.minpro import PrefixMinimum


@pytest.mark.parametrize("inside", [False, True])
def test_prefix_minimum(inside: bool) -> None:
    case = Case.random(3)

    def expected(logprob: Tensor, *_: object) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for rows in case.rows("sequence"):
            smallest = 1.0
            for place, t in enumerate(rows):
                r, a = (logprob[t] - case.old_logprob[t]).exp(), case.advantage[t]
                m = max(smallest, 0.9)
                objective = ppo(m * r, a, 0.8, 1.2) if inside else m * ppo(r, a, 0.8, 1.2)
                total = total - case.weight[t] * objective
                smallest = r.item() if place == 0 else min(smallest, r.item())
        return total

    agree(loss.Policy(ratio=PrefixMinimum(at_least=0.9, inside=inside)), case, expected)
