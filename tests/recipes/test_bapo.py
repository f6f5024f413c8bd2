"""Compare the adaptive clip range of BAPO with the published search."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from cases import Case, agree, ppo, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.bapo import BalancedClip


@pytest.mark.parametrize("first", ["low", "high"])
@pytest.mark.parametrize("measure", ["odds", "share"])
@pytest.mark.parametrize("target", [0.2, 0.4, 0.55, 1.0, 1.6, 9.0])
def test_balanced_clip(target: float, measure: Literal["odds", "share"], first: Literal["low", "high"]) -> None:
    case = Case.random(5, spread=0.8)
    ratio = (case.logprob - case.old_logprob).exp()

    def share(lower: float, upper: float) -> float:
        used = torch.where(case.advantage >= 0, ratio.clamp(max=upper), ratio.clamp(min=lower))
        gain = (case.weight * (used * case.advantage).clamp(min=0)).sum()
        pull = (case.weight * (-used * case.advantage).clamp(min=0)).sum()
        return (gain / pull if measure == "odds" else gain / (gain + pull)).item()

    lower, upper = 0.6, 1.2
    while first == "low" and share(lower, upper) < target and lower < 0.9 - 1e-9:
        lower = min(lower + 0.02, 0.9)
    while share(lower, upper) < target and upper < 3.0 - 1e-9:
        upper = min(upper + 0.05, 3.0)
    while first == "high" and share(lower, upper) < target and lower < 0.9 - 1e-9:
        lower = min(lower + 0.02, 0.9)
    clip = BalancedClip(target=target, kind=measure, first=first, dual=3.0)
    bounds = clip(case.tokens(), case.logprob - case.old_logprob)
    assert (bounds.lower.item(), bounds.upper.item()) == pytest.approx((lower, upper), abs=1e-9)

    def objective(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
        return ppo(ratio[t], case.advantage[t], lower, upper, 3.0)

    agree(loss.Policy(clip=clip), case, transcribed(case, objective))


def test_balanced_clip_without_one_side() -> None:
    case = Case.random(5)
    for sign, expected in ((1.0, (0.6, 1.2)), (-1.0, (0.9, 3.0))):
        part = case.weight * case.advantage.abs() * sign
        case.streams["advantage_positive"], case.streams["advantage_negative"] = part.clamp(min=0), part.clamp(max=0)
        bounds = BalancedClip()(case.tokens(), case.logprob - case.old_logprob)
        assert (bounds.lower.item(), bounds.upper.item()) == pytest.approx(expected)
