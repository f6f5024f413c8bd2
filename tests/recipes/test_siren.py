"""The anchored entropy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from cases import Case, agree
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.siren import EntropyAnchor


def test_siren() -> None:
    case = Case.random(17)

    def expected(logprob: Tensor, _: Tensor, answers: SimpleNamespace) -> Tensor:
        means = []
        for rows in case.rows("sequence"):
            inside = answers.top_p_entropy[rows]
            peak = inside[inside > torch.quantile(inside.detach(), 0.8)]
            if len(peak):
                means.append(peak.mean())
        assert len(means) == len(case.rows("sequence")) - 1  # a response of one token has no peak
        return -(case.weight * case.advantage * logprob).sum() + 0.3 * (torch.stack(means).mean() - 0.4) ** 2

    agree(loss.Policy(clip=None, surrogate=loss.Reinforce(), entropy=EntropyAnchor(0.3, 0.4)), case, expected)


def test_the_anchor_can_be_read_off_an_update() -> None:
    case = Case.random(17)
    term = EntropyAnchor(0.3, 0.4)
    _, sums = loss.Policy(entropy=term).evaluate(case.tokens())
    assert (sums["peak_entropy"] / sums["tokens"]).item() == pytest.approx(term.peak_entropy(case.tokens()).item())
