"""Compare ratios by strata with a loop."""

from __future__ import annotations

import pytest
import torch
from cases import Case, agree, ppo
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.grpo_guard import StratifiedRatio


def test_stratified_ratio() -> None:
    case = Case.random(4)

    def expected(logprob: Tensor, *_: object) -> Tensor:
        away = logprob - case.old_logprob
        fixed = away.detach()
        ratio = torch.zeros_like(away)
        for stratum in range(3):
            inside = case.stratum == stratum
            large = inside.sum() >= 9
            mean = fixed[inside].mean() if large else fixed.mean()
            scale = fixed.std(correction=0) / (fixed[inside].std(correction=0) + 1e-6) if large else 1.0
            ratio = ratio + inside * ((away - mean) * scale).exp()
        each = [case.weight[t] * ppo(ratio[t], case.advantage[t], 0.8, 1.2) for t in range(len(ratio))]
        return -torch.stack(each).sum()

    assert {int((case.stratum == stratum).sum()) for stratum in range(3)} == {9}
    agree(loss.Policy(ratio=StratifiedRatio(9)), case, expected)
    with pytest.raises(AssertionError):
        agree(loss.Policy(ratio=StratifiedRatio(10)), case, expected)
