"""Clip range and advantage by entropy, against the published formula."""

from __future__ import annotations

import torch
from cases import Case, agree, ppo, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.hapo import EntropyAdvantage, EntropyScaledClip, normalised_entropy


def test_hapo() -> None:
    case = Case.random(8)
    e = case.entropy.clamp(min=1e-8).log()
    h = e - torch.quantile(e, 0.8, interpolation="nearest")
    h = h / h.square().mean().sqrt()
    h = torch.where(h > 0, h / h.max(), h / h.min().abs())
    torch.testing.assert_close(normalised_entropy(case.tokens(), 0.8, "all"), h)
    assert h.min() == -1
    assert h.max() == 1

    def objective(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
        r, a = ratio[t], case.advantage[t]
        outside = not 0.9 < r < 1.1
        if (h[t] > 0) == outside:
            a = a * (1 + 0.5 * h[t])
        low = 0.2 * (1 - h[t]) if h[t] <= 0 else 0.2
        high = 0.2 * (1 + h[t]) if h[t] > 0 else 0.2
        return ppo(r, a, 1 - low, 1 + high)

    policy = loss.Policy(clip=EntropyScaledClip(scope="all"), mask=EntropyAdvantage(0.5, scope="all"))
    agree(policy, case, transcribed(case, objective))
