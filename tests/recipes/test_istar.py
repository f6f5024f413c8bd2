"""Preferences between trajectories, against a loop over pairs."""

from __future__ import annotations

import pytest
import torch
from cases import Case, agree, total
from torch import Tensor
from torch.nn import functional

from agentrl_core.recipes.istar import TrajectoryPairs


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_all_pairs_of_a_group(reduce: str, seed: int) -> None:
    case = Case.random(seed, per="sequence")

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for parts in case.parts("group"):
            scores = []
            for part in parts:
                away = (logprob - case.reward_reference_logprob)[part]
                steps = case.step[part]
                scores.append(torch.stack([0.3 * away[steps == step].sum() for step in steps.unique()]))
                scores[-1] = getattr(scores[-1], reduce)()
            labels = [case.score[part[0]] for part in parts]
            costs += [
                -total(case, part) * functional.logsigmoid(better - worse)  # the weight of the better one
                for part, better, high in zip(parts, scores, labels, strict=True)
                for worse, low in zip(scores, labels, strict=True)
                if high > low
            ]
        assert len(costs) > 2
        return torch.stack(costs).sum()

    agree(TrajectoryPairs(beta=0.3, reduce=reduce), case, expected)
