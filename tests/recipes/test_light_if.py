"""The entropy bonus for tokens whose advantage and log-prob co-vary."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from cases import Case, agree
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.light_if import CovarianceEntropy


def test_light_if() -> None:
    case = Case.random(16)
    cov = (case.advantage - case.advantage.mean()) * (case.logprob - case.logprob.mean())
    share = torch.zeros_like(cov)
    for rows in case.rows("sequence"):
        share[rows] = (10 * cov[rows].softmax(0)).clamp(0, 5)

    def expected(logprob: Tensor, entropy: Tensor, _: SimpleNamespace) -> Tensor:
        return -(case.weight * case.advantage * logprob).sum() - 0.02 * (case.weight_entropy * share * entropy).sum()

    agree(loss.Policy(clip=None, surrogate=loss.Reinforce(), entropy=CovarianceEntropy(0.02)), case, expected)
