"""Compare differences of rewards with a loop over pairs."""

from __future__ import annotations

import pytest
import torch
from cases import Case, agree, total
from torch import Tensor

from agentrl_core.recipes.p3o import PairwiseProximal


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["separate", "joint"])
def test_p3o(kind: str, seed: int) -> None:
    case = Case.random(seed, per="sequence", spread=0.15)

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for rows, parts in zip(case.rows("pair"), case.parts("pair"), strict=True):
            reward = [case.advantage[part[0]] for part in parts]
            new, old = ([values[part].sum() for part in parts] for values in (logprob, case.old_logprob))
            ratio = [(a - b).exp() for a, b in zip(new, old, strict=True)]
            if kind == "separate":
                objective = 0.0
                for i, j in ((0, 1), (1, 0)):
                    v = ((reward[i] - reward[j]) * ratio[j]).detach()
                    objective = objective + 0.5 * torch.minimum(v * ratio[i], v * ratio[i].clamp(0.8, 1.2))
            else:
                v = ((reward[0] - reward[1]) * ratio[0] * ratio[1]).detach()
                apart, before = new[0] - new[1], old[0] - old[1]
                clipped = torch.clamp(apart, before - 0.2, before + 0.2)
                objective = 0.5 * torch.minimum(v * apart, v * clipped)
            costs.append(-total(case, rows) * objective)
        return torch.stack(costs).sum()

    agree(PairwiseProximal(kind=kind), case, expected)
