"""DCPO: numbers by hand over three visits of a task, and its clip range one token at a time."""

from __future__ import annotations

import math

import pytest
from cases import Case, agree, ppo, transcribed
from compared import close, visits
from torch import Tensor

from agentrl_core import loss
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.dcpo import CumulativeStandardised, ProbabilityClip


def test_cumulative_statistics() -> None:
    advantages = visits(CumulativeStandardised(), [0.0, 0.0, 1.0, 1.0], [1.0] * 4, [0.0, 1.0, 1.0, 1.0])
    close(advantages[0], [-1.0, -1.0, 1.0, 1.0], 1e-6)
    close(advantages[1], [0.288675] * 4, 1e-6)
    close(advantages[2], [-1.732051, 0.57735, 0.57735, 0.57735], 1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CumulativeStandardised(ddof=2), "ddof=2"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def dcpo(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    q = case.old_logprob[t].exp().item()
    lower = 0.5 + 0.5 * math.sqrt(max(0.0, 1 - 4 * 0.16 / q))
    upper = min(0.5 + 0.5 * math.sqrt(1 + 4 * 0.2 / q), 1.6)
    return ppo(ratio[t], case.advantage[t], lower, upper, 10.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_one_token_at_a_time(seed: int) -> None:
    case = Case.random(seed)
    agree(loss.Policy(clip=ProbabilityClip(at_most=1.6)), case, transcribed(case, dcpo))
