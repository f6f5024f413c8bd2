"""Compare distillation losses on three tokens with the enumerated distributions: values and gradients, in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from agentrl_core import loss, recipes
from agentrl_core.exceptions import InvalidInputError, RecipeError, UnsupportedError
from agentrl_core.model.comparisons import Comparison
from agentrl_core.model.logit_statistics import divergence, top_logprobs
from agentrl_core.model.output_layer import score
from agentrl_core.weight import MarkedScaled

BETAS = [0.0, 0.1, 0.5, 0.9, 1.0]
LOGITS = [[0.3, -1.0, 0.7], [2.0, 0.1, -0.4], [-0.5, 0.5, 0.0]]
TEACHER = [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.25, 0.25, 0.5]]
WEIGHTS = [0.5, 0.0, 0.25]  # the second row is a tool's: not trained


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def slopes(p: list[float], q: list[float], beta: float) -> tuple[float, list[float]]:
    """Return D of two distributions, and its derivative by each probability of p."""
    if beta == 0.0:
        return sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)), [-b / a for a, b in zip(p, q, strict=False)]
    if beta == 1.0:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)), [
            math.log(a / b) + 1.0 for a, b in zip(p, q, strict=False)
        ]
    m = [beta * b + (1.0 - beta) * a for a, b in zip(p, q, strict=True)]
    to_teacher = sum(b * math.log(b / c) for b, c in zip(q, m, strict=True))
    to_policy = sum(a * math.log(a / c) for a, c in zip(p, m, strict=True))
    value = beta * to_teacher + (1.0 - beta) * to_policy
    return value, [(1.0 - beta) * math.log(a / c) for a, c in zip(p, m, strict=True)]


def enumerated(logits: list[float], q: list[float], beta: float, bins: list[int]) -> tuple[float, list[float]]:
    """Return D over bins of tokens, and its derivative by each logit: p_v (g_v - sum of p g)."""
    p, count = softmax(logits), max(bins) + 1
    joined = [[sum(x[v] for v in range(3) if bins[v] == b) for b in range(count)] for x in (p, q)]
    value, of_bins = slopes(joined[0], joined[1], beta)
    g = [of_bins[b] for b in bins]
    mean = sum(a * b for a, b in zip(p, g, strict=True))
    return value, [p[v] * (g[v] - mean) for v in range(3)]


def rows(beta: float, bins: list[list[int]]) -> tuple[float, list[list[float]]]:
    total, gradient = 0.0, []
    for logits, q, weight, of_row in zip(LOGITS, TEACHER, WEIGHTS, bins, strict=True):
        value, slope = enumerated(logits, q, beta, of_row)
        total += weight * value
        gradient.append([weight * x for x in slope])
    return total, gradient


def tokens(logits: Tensor, comparison: Comparison, **streams: Tensor) -> loss.Tokens:
    """Return the inputs that a pack gives to a loss, from logits at temperature 1."""
    target, scale = torch.tensor([2, 0, 1]), torch.ones(3, dtype=torch.float64)
    logprob, entropy, output = score(
        logits, target, scale, comparison.column, entropy_gradient=False, outputs=(), comparisons=[comparison]
    )
    streams = {"weight_kl": torch.tensor(WEIGHTS, dtype=torch.float64), **streams}
    return loss.Tokens(logprob, entropy, streams, SimpleNamespace(**{comparison.name: output}))


def agree(value: Tensor, logits: Tensor, expected: tuple[float, list[list[float]]]) -> None:
    value.backward()
    assert logits.grad is not None
    assert value.item() == pytest.approx(expected[0], abs=1e-12)
    torch.testing.assert_close(logits.grad, torch.tensor(expected[1], dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_the_whole_vocabulary(beta: float) -> None:
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor(TEACHER, dtype=torch.float64).log()
    comparison = Comparison("divergence", teacher, lambda student, target, _: divergence(student, target, beta))
    value, metrics = loss.Divergence(beta=beta, support="vocabulary").evaluate(tokens(logits, comparison))
    agree(value, logits, rows(beta, [[0, 1, 2]] * 3))
    assert metrics["tokens"] == 2
    two = [slopes(softmax(LOGITS[row]), TEACHER[row], beta)[0] for row in (0, 2)]
    assert metrics["divergence"].item() == pytest.approx(sum(two))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(("ids", "bins"), [([[1], [0], [2]], [[1, 0, 1], [0, 1, 1], [1, 1, 0]])])
def test_the_top_token_and_the_tail(beta: float, ids: list[list[int]], bins: list[list[int]]) -> None:
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    places = torch.tensor(ids)
    top = torch.tensor(TEACHER, dtype=torch.float64).gather(1, places).log()
    comparison = Comparison("top_logprobs", places, lambda student, ids, _: top_logprobs(student, ids))
    inputs = tokens(logits, comparison, teacher_top_ids=places, teacher_top_logprobs=top)
    value, metrics = loss.Divergence(beta=beta, support="top").evaluate(inputs)
    agree(value, logits, rows(beta, bins))
    assert metrics["coverage"].item() == pytest.approx(TEACHER[0][1] + TEACHER[2][2])
    assert metrics["policy_coverage"].item() == pytest.approx(softmax(LOGITS[0])[1] + softmax(LOGITS[2])[2])
    reverse = [enumerated(LOGITS[row], TEACHER[row], 1.0, bins[row])[0] for row in (0, 2)]
    assert metrics["teacher_kl"].item() == pytest.approx(sum(reverse))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("fill", ["none", "absent"])
def test_all_tokens_as_top_tokens_equal_the_whole_vocabulary(beta: float, fill: str) -> None:
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    places = torch.tensor([[2, 0, 1]] * 3)
    top = torch.tensor(TEACHER, dtype=torch.float64).gather(1, places).log()
    if fill == "absent":
        places = torch.cat([places, torch.full((3, 2), -1)], dim=1)
        top = torch.cat([top, torch.full((3, 2), -torch.inf, dtype=torch.float64)], dim=1)
    comparison = Comparison("top_logprobs", places, lambda student, ids, _: top_logprobs(student, ids))
    inputs = tokens(logits, comparison, teacher_top_ids=places, teacher_top_logprobs=top)
    value, _ = loss.Divergence(beta=beta, support="top").evaluate(inputs)
    agree(value, logits, rows(beta, [[0, 1, 2]] * 3))


def test_sampled_tokens_give_the_reverse_kl_in_expectation() -> None:
    """The sum over the three tokens, weighted by their probabilities, is KL(p || q) with its gradient."""
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor(TEACHER, dtype=torch.float64).log()
    total = torch.zeros((), dtype=torch.float64)
    for token in range(3):
        logprob = logits.log_softmax(-1)[:, token]
        weight = torch.tensor(WEIGHTS, dtype=torch.float64) * logprob.detach().exp()
        inputs = loss.Tokens(logprob, None, {"weight_kl": weight, "teacher_logprob": teacher[:, token]})
        total = total + loss.Divergence(beta=1.0, support="sampled").evaluate(inputs)[0]
    agree(total, logits, rows(1.0, [[0, 1, 2]] * 3))


def test_a_ratio_makes_the_estimate_exact_for_an_older_policy() -> None:
    """Tokens that an older policy sampled, weighted by p / p_old, give KL(p || q) of the new one."""
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    older = torch.tensor(LOGITS, dtype=torch.float64).flip(1).log_softmax(-1)
    teacher = torch.tensor(TEACHER, dtype=torch.float64).log()
    total = torch.zeros((), dtype=torch.float64)
    for token in range(3):
        streams = {
            "weight_kl": torch.tensor(WEIGHTS, dtype=torch.float64) * older[:, token].exp(),
            "teacher_logprob": teacher[:, token],
            "old_logprob": older[:, token],
        }
        inputs = loss.Tokens(logits.log_softmax(-1)[:, token], None, streams)
        total = total + loss.Divergence(beta=1.0, support="sampled", ratio_at_most=1e6).evaluate(inputs)[0]
    agree(total, logits, rows(1.0, [[0, 1, 2]] * 3))


def test_a_ratio_is_bounded() -> None:
    streams = {
        "weight_kl": torch.ones(2),
        "teacher_logprob": torch.tensor([-2.0, -2.0]),
        "old_logprob": torch.tensor([-3.0, -1.5]),
    }
    inputs = loss.Tokens(torch.tensor([-1.0, -1.0]), None, streams)
    value, _ = loss.Divergence(beta=1.0, support="sampled", ratio_at_most=2.0).evaluate(inputs)
    assert value.item() == pytest.approx(2.0 + math.exp(0.5))


@pytest.mark.parametrize("beta", BETAS)
def test_the_vocabulary_equals_trl(beta: float) -> None:
    trainer = pytest.importorskip("trl.experimental.gkd").GKDTrainer
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(1, 5, 50, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = trainer.generalized_jsd_loss(student, teacher, beta=beta, reduction="sum")
    assert divergence(student[0], teacher[0], beta).sum().item() == pytest.approx(expected.item(), rel=1e-6)


def test_invalid_options_and_missing_inputs_are_refused() -> None:
    with pytest.raises(RecipeError, match="beta=1 with support='sampled'"):
        loss.Divergence(support="sampled")
    with pytest.raises(RecipeError, match="beta"):
        loss.Divergence(beta=1.5)
    streams = {"weight_kl": torch.ones(1)}
    inputs = loss.Tokens(torch.zeros(1), None, streams)
    with pytest.raises(UnsupportedError, match="divergence"):
        loss.Divergence(support="vocabulary").evaluate(inputs)
    with pytest.raises(InvalidInputError, match="teacher_logprob"):
        loss.Divergence(beta=1.0, support="sampled").evaluate(inputs)


def test_a_weight_that_no_loss_applies_is_refused() -> None:
    teacher = loss.Divergence("token_mean", beta=1.0, support="top")
    distilled = recipes.GRPO.replace(loss=teacher, frozen=("teacher",))
    weighted = distilled.replace(weight=MarkedScaled("thought", marked=0.5))
    with pytest.raises(RecipeError, match=r"makes column 'weight', .* make column 'kl_weight'"):
        weighted.check()
    distilled.replace(weight=MarkedScaled("thought", marked=0.5, of="kl_weight")).check()
    weighted.replace(loss=loss.Sum(loss.Policy("token_mean"), teacher)).check()
