"""The clip range by probability, one token at a time."""

from __future__ import annotations

import math

import pytest
from cases import Case, agree, ppo, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.dcpo import ProbabilityClip


def dcpo(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    q = case.old_logprob[t].exp().item()
    lower = 0.5 + 0.5 * math.sqrt(max(0.0, 1 - 4 * 0.16 / q))
    upper = min(0.5 + 0.5 * math.sqrt(1 + 4 * 0.2 / q), 1.6)
    return ppo(ratio[t], case.advantage[t], lower, upper, 10.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_one_token_at_a_time(seed: int) -> None:
    case = Case.random(seed)
    agree(loss.Policy(clip=ProbabilityClip(at_most=1.6)), case, transcribed(case, dcpo))
