"""Compare the norm of the gradient of each draw's log-prob with the model's own forward and backward."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from paths import contexts
from torch import nn
from updates import grow

from agentrl_core import Batch, annotate
from agentrl_core.exceptions import InvalidInputError


def by_hand(batch: Batch, model: nn.Module) -> list[float]:
    """Sum log p of every trained token after its context, step by step; then do one backward pass per draw."""
    steps, tokens = batch.offsets("step"), batch.offsets("token")
    columns = {name: batch.column(name, "token") for name in ("token", "trainable", "inverse_temperature")}
    norms = []
    for draw, before in enumerate(contexts(batch)):
        model.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for number, step in enumerate(range(steps[draw], steps[draw + 1])):
            step_tokens = slice(tokens[step], tokens[step + 1])
            action = columns["token"][step_tokens].astype(int).tolist()
            logits = model(input_ids=torch.tensor([before[number] + action])).logits[0, len(before[number]) - 1 : -1]
            scaled = logits * torch.tensor(columns["inverse_temperature"][step_tokens], dtype=torch.float64)[:, None]
            chosen = scaled.log_softmax(-1).gather(1, torch.tensor(action)[:, None])[:, 0]
            total = total + chosen[torch.tensor(columns["trainable"][step_tokens] != 0)].sum()
        total.backward()
        squares = sum(float((each.grad**2).sum()) for each in model.parameters() if each.requires_grad)
        norms.append(squares**0.5)
    return norms


@pytest.mark.parametrize("layout", ["tree", "sequence", "padded"])
def test_norms_are_those_of_plain_backward_passes(layout: str) -> None:
    batch, model = grow(1), tiny_model("qwen3")
    expected = by_hand(batch, copy.deepcopy(model))
    assert len(set(expected)) > 8
    annotated = annotate(batch, "gradient_norm", model, level="draw", layout=layout, max_tokens=75)
    np.testing.assert_allclose(annotated.column("gradient_norm", "draw"), expected, rtol=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_only_trained_parameters_and_chosen_draws_count() -> None:
    batch, model = grow(2), tiny_model("qwen3")
    for parameter in model.model.layers[0].parameters():
        parameter.requires_grad_(requires_grad=False)
    chosen = np.arange(batch.num_draws) % 3 == 0
    norms = annotate(batch, "gradient_norm", model, level="draw", draws=chosen).column("gradient_norm", "draw")
    np.testing.assert_allclose(norms[chosen], np.array(by_hand(batch, copy.deepcopy(model)))[chosen], rtol=1e-5)
    assert np.isnan(norms[~chosen]).all()


def test_gradient_norms_that_cannot_be_computed_are_rejected() -> None:
    batch, model = grow(1), tiny_model("qwen3")
    with pytest.raises(
        InvalidInputError, match=r"column is 'reference_logprob'; give a name that ends with 'gradient_norm'"
    ):
        annotate(batch, "reference_logprob", model, level="draw")
    with pytest.raises(InvalidInputError, match=r"give a torch\.nn\.Module"):
        annotate(batch, "gradient_norm", lambda pack: pack.target, level="draw")
    with pytest.raises(InvalidInputError, match="unfreeze those that are trained"):
        annotate(batch, "gradient_norm", model.requires_grad_(requires_grad=False), level="draw")
