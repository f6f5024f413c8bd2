"""Who speaks by divergence, one token at a time."""

from __future__ import annotations

import math

import pytest
from cases import Case, Objective, agree, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.dppo import DivergenceMask


def dppo_tv(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, moved = case.advantage[t], logprob[t].exp() - case.old_logprob[t].exp()
    kept = moved <= 0.05 if a > 0 else moved >= -0.04
    return a * min(ratio[t].item(), 1.3) * logprob[t] * float(kept)


def dppo_kl(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, p, q = case.advantage[t], logprob[t].exp().item(), case.old_logprob[t].exp().item()
    divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    kept = divergence <= 0.02 or (p <= q if a > 0 else p >= q)
    return a * min(ratio[t].item(), 1.3) * logprob[t] * float(kept)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("mask", "objective"), [(DivergenceMask("tv", 0.04, 0.05), dppo_tv), (DivergenceMask("kl", 0.02, 0.02), dppo_kl)]
)
def test_one_token_at_a_time(mask: DivergenceMask, objective: Objective, seed: int) -> None:
    case = Case.random(seed)
    surrogate = loss.Reinforce("ratio", "ratio", at_most=1.3)
    agree(loss.Policy(clip=None, surrogate=surrogate, mask=mask), case, transcribed(case, objective))
