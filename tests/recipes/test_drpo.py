"""Compare right answers weighted by length, and wrong ones as a soft maximum, with a loop."""

from __future__ import annotations

import pytest
import torch
from cases import Case, agree
from torch import Tensor

from agentrl_core.recipes.drpo import LengthDecoupled


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("target", [1e-4, 1e3])
def test_drpo(target: float, seed: int) -> None:
    case = Case.random(seed, per="sequence")

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        groups = list(case.parts("group"))
        for parts in groups:
            good = [part for part in parts if case.advantage[part[0]] > 0]
            bad = [part for part in parts if case.advantage[part[0]] <= 0]
            if good and bad:
                v = torch.tensor([(1 - len(part) / 8) / 0.5 for part in good], dtype=torch.float64).exp()
                s = torch.stack([logprob[part].mean() for part in good])
                n = torch.stack([logprob[part].mean() for part in bad])
                objective = (v / v.sum() * s).sum() - 2.0 * torch.log((n / 2.0).exp().mean())
                costs.append(-objective)
        assert costs
        d = logprob - case.old_logprob
        drift = -d.mean()
        mean = case.weight.sum() * torch.stack(costs).sum() / len(groups)
        return mean + max(3.0 * (drift.item() - target), 0.0) * drift

    policy = LengthDecoupled(temperature=2.0, sharpness=0.5, length_at_most=8, kl_coefficient=3.0, kl_target=target)
    agree(policy, case, expected)
