"""Compare the statistics of a row of logits with their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from paths import contexts
from torch import nn
from updates import grow

from agentrl_core import annotate, recipes
from agentrl_core.model import logit_statistics as answers
from agentrl_core.recipes.b_coder import proposed_value
from agentrl_core.recipes.td3 import estimate


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


def test_answers_of_values_by_hand() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]], dtype=torch.float64, requires_grad=True)
    total = math.log(sum(math.exp(z) for z in (1.0, 3.0, 2.0)))
    assert answers.soft_value(logits).item() == pytest.approx(total)
    assert answers.max_logprob(logits).item() == pytest.approx(3.0 - total)
    assert answers.likeliest(logits).tolist() == [1]
    assert torch.autograd.gradcheck(answers.soft_value, logits)
    assert torch.autograd.gradcheck(answers.max_logprob, logits)


def contexts_of(batch: object) -> list[tuple[list[int], int, float, int]]:
    """Return the trained tokens of the first draws: context, token, temperature and place in the batch of each."""
    offsets, tokens = batch.offsets("token"), batch.column("token", "token")
    scale, trained = batch.column("inverse_temperature", "token"), batch.column("trainable", "token")
    steps, result = batch.offsets("step"), []
    for draw, draw_contexts in enumerate(contexts(batch)):
        for step, context in zip(range(*steps[draw : draw + 2].tolist()), draw_contexts[:-1], strict=True):
            begin, end = offsets[step : step + 2].tolist()
            for place in range(begin, end):
                before = [*context, *tokens[begin:place].tolist()]
                result.append((before, int(tokens[place]), 1.0 / float(scale[place]), place))
    return [row for row in result if trained[row[3]] != 0][:40]


@torch.no_grad()
def logits_of(model: nn.Module, context: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([context])).logits[0, -1]


def test_soft_values_are_computed_at_the_temperature_of_each_token() -> None:
    batch, model = grow(0), tiny_model("qwen3")
    soft_values = annotate(batch, "soft_value", model).column("soft_value", "token")
    likelihood = annotate(batch, "own_logprob", model).column("own_logprob", "token")
    rows = contexts_of(batch)
    assert len(rows) > 20
    assert len({round(temperature, 3) for _, _, temperature, _ in rows}) > 2
    for context, token, temperature, place in rows:
        logits = logits_of(model, context)
        assert soft_values[place] == pytest.approx(temperature * (logits / temperature).logsumexp(0).item(), abs=1e-4)
        # Q of the token is its logit: what `loss.Value(of="logit")` fits.
        assert temperature * likelihood[place] + soft_values[place] == pytest.approx(logits[token].item(), abs=1e-4)


def test_an_estimate_is_the_logit_of_the_token_or_of_the_policy_s_choice() -> None:
    batch, critic, policy = grow(0), tiny_model("qwen3", seed=1), tiny_model("qwen3", seed=2)
    estimates, best_estimates = (
        annotate(batch, "estimate", estimate(critic, chooser)).column("estimate", "token") for chooser in (None, policy)
    )
    rows = contexts_of(batch)
    assert len(rows) > 20
    for context, token, _, place in rows:
        logits = logits_of(critic, context)
        assert estimates[place] == pytest.approx(logits[token].item(), abs=1e-4)
        assert best_estimates[place] == pytest.approx(logits[logits_of(policy, context).argmax()].item(), abs=1e-4)


def test_the_target_model_scores_the_likeliest_token_of_the_proposal_model() -> None:
    batch, proposal, target = grow(1), tiny_model("qwen3", seed=1), tiny_model("qwen3", seed=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target.value_head = nn.Linear(target.config.hidden_size, 1).double()
    values = annotate(batch, "value", proposed_value(proposal, target, scale=0.7)).column("value", "token")
    rows = contexts_of(batch)
    for context, _, _, place in rows:
        logits = logits_of(target, context)
        with torch.no_grad():
            hidden = target.model(input_ids=torch.tensor([context])).last_hidden_state[0, -1]
            value = target.value_head(hidden).item()
        chosen = int(logits_of(proposal, context).argmax())
        assert values[place] == pytest.approx(0.7 * (logits[chosen] - logits.max()).item() + value, abs=1e-4)
    assert any(int(logits_of(proposal, row[0]).argmax()) != row[1] for row in rows)
    scored = batch.with_columns("draw", score=batch.column("reward", "draw")).with_columns("token", value=values)
    returned = recipes.B_CODER.advantage(scored).column("return", "token")
    assert np.isfinite(returned).all()
