"""Clip ranges by entropy, and flipped ratios."""

from __future__ import annotations

import pytest
import torch
from cases import Case, agree, ppo, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.aspo import EntropyClip, InverseRatio


def aspo(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    """Return gradients as in the paper; r / sg(r) is 1."""
    a, r = case.advantage[t], ratio[t]
    if (a > 0 and r > 1.3) or (a < 0 and r < 0.8):
        return 0.0 * r
    weight = 1.0 / r.item() if a > 0 else r.item()
    moving = (logprob[t] - logprob[t].detach()).exp()
    return a * min(weight, 1.1 if a > 0 else 1.2) * moving


@pytest.mark.parametrize("scope", ["sequence", "all"])
def test_entropy_banded_clip(scope: str) -> None:
    case = Case.random(7)
    uncertain = torch.zeros(len(case.entropy), dtype=torch.bool)
    for rows in case.rows("sequence") if scope == "sequence" else [torch.arange(len(case.entropy))]:
        uncertain[rows] = case.entropy[rows] > torch.quantile(case.entropy[rows], 0.6)

    def objective(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
        width = 0.4 if uncertain[t] else 0.2
        return ppo(ratio[t], case.advantage[t], 1 - width, 1 + width)

    agree(loss.Policy(clip=EntropyClip(quantile=0.6, scope=scope)), case, transcribed(case, objective))


@pytest.mark.parametrize("seed", [0, 1])
def test_one_token_at_a_time(seed: int) -> None:
    case = Case.random(seed)
    agree(loss.Policy(clip=loss.Clip(0.2, 0.3), surrogate=InverseRatio(1.1, 1.2)), case, transcribed(case, aspo))
