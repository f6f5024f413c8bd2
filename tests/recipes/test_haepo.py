"""Compare the softmax over a group's answers with a loop."""

from __future__ import annotations

import pytest
import torch
from cases import Case, agree, total
from torch import Tensor

from agentrl_core.recipes.haepo import TrajectorySoftmax


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("score", ["sum", "mean", "log_ratio"])
def test_haepo(score: str, seed: int) -> None:
    case = Case.random(seed, per="sequence")

    def expected(logprob: Tensor, *_: object) -> Tensor:
        def distribution(values: Tensor, parts: list[Tensor]) -> Tensor:
            values = values - case.old_logprob if score == "log_ratio" else values
            reduce = torch.mean if score == "mean" else torch.sum
            return torch.stack([0.5 * reduce(values[part]) for part in parts]).softmax(0)

        costs = []
        for rows, parts in zip(case.rows("group"), case.parts("group"), strict=True):
            p, before = distribution(logprob, parts), distribution(case.old_logprob, parts)
            reward = torch.stack([case.advantage[part[0]] for part in parts])
            objective = (p * reward).sum() - 0.2 * (p * p.log()).sum() - 0.3 * (before * (before / p).log()).sum()
            costs.append(-total(case, rows) * objective)
        return torch.stack(costs).sum()

    agree(
        TrajectorySoftmax(score=score, coefficient=0.5, entropy_coefficient=0.2, drift_coefficient=0.3), case, expected
    )
