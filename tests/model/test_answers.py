"""What is said about a row of logits, against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl_core.model import answers


def test_entropy_of_likely_tokens() -> None:
    logits = torch.tensor([[0.5, 0.4, 0.1], [0.9, 0.05, 0.05]], dtype=torch.float64).log().requires_grad_()
    half = [0.5 / 0.9, 0.4 / 0.9]
    nucleus = -sum(p * math.log(p) for p in half)
    assert answers.top_p_entropy(logits, 0.8).tolist() == pytest.approx([nucleus, 0.0])
    assert answers.top_p_entropy(logits, 0.8, include_crossing=False).tolist() == [0.0, 0.0]
    assert torch.autograd.gradcheck(lambda z: answers.top_p_entropy(z, 0.8), logits)
    dead = torch.tensor([[0.0, 1.0, -torch.inf]], dtype=torch.float64, requires_grad=True)
    value = answers.top_p_entropy(dead, 0.99)
    assert torch.autograd.grad(value.sum(), dead)[0].isfinite().all()


def test_full_divergence() -> None:
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    other = torch.randn(4, 5, dtype=torch.float64)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=logits), torch.distributions.Categorical(logits=other)
    )
    torch.testing.assert_close(answers.full_kl(logits, other), expected)
    assert torch.autograd.gradcheck(lambda z: answers.full_kl(z, other), logits)
