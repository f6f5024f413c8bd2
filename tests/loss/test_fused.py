"""Compare loss.fused and loss.linear_logprob with the plain computation, for every loss, chunk size and dtype."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from fused_cases import EVERYTHING, HEADS, SEQUENCES, TOKENS, head_of, naive, pack_of, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from systems import LOSSES
from torch import Tensor

from agentrl_core import loss
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model import lm_head as head_module

ANSWERED = {name: policy for name, policy in LOSSES.items() if not policy.outputs}
BOTH = pytest.mark.parametrize("policy", [EVERYTHING, SEQUENCES], ids=["one pass", "two passes"])


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """With workspace=1 a chunk has eight rows."""
    monkeypatch.setitem(head_module._TILE, "cpu", 8)


def differentiate(value: Tensor, hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    if not value.requires_grad:
        return torch.zeros_like(hidden), torch.zeros_like(weight)
    return torch.autograd.grad(value, (hidden, weight), allow_unused=True, materialize_grads=True)


def options_of(policy: loss.Loss) -> dict[str, object]:
    if "PairwiseProximal" in repr(policy):
        return {"per": "sequence"}
    labels = "Preference" in repr(policy)
    return {"per": "sequence" if labels else "token", "labels": labels}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", ANSWERED)
def test_equals_the_plain_loss(name: str) -> None:
    policy = ANSWERED[name]
    hidden, weight, pack = problem(3, **options_of(policy))
    value, sums = policy(naive(hidden, weight, pack), pack)
    expected = differentiate(value, hidden, weight)
    for workspace in (None, 1):
        output = loss.fused(hidden, weight, pack, policy, workspace=workspace)
        torch.testing.assert_close(output.loss, value, rtol=1e-12, atol=1e-12)
        for result, right in zip(differentiate(output.loss, hidden, weight), expected, strict=True):
            torch.testing.assert_close(result, right, rtol=1e-12, atol=1e-12)
        assert list(output.metrics) == list(sums)
        for key, total in sums.items():
            torch.testing.assert_close(output.metrics[key].double(), total.double(), rtol=1e-11, atol=1e-11)
            assert not output.metrics[key].requires_grad
    assert max(gradient.abs().max() for gradient in expected) > 1e-6


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("head", HEADS)
@BOTH
def test_fused_outputs_and_gradients_equal_the_exact_ones(policy: loss.Loss, head: str, dtype: torch.dtype) -> None:
    """Value, log-probs, entropies, and gradients by hidden states, weight and bias equal the exact ones."""
    hidden, weight, pack = problem(2, dtype)
    options = head_of(head, dtype)
    leaves = [value for value in (hidden, weight, options.get("bias")) if value is not None]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = naive(*wide[:2], pack, **(options | ({"bias": wide[2]} if "bias" in options else {})))
    value = policy(exact, pack)[0]
    expected = torch.autograd.grad(value, wide)
    assert expected[-1].abs().max() > 1e-3
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 3e-6}
    for workspace in (None, 1):
        output = loss.fused(hidden, weight, pack, policy, workspace=workspace, **options)
        assert output.logprob.dtype == dtype
        for result, right in ((output.loss, value), (output.logprob, exact.logprob), (output.entropy, exact.entropy)):
            torch.testing.assert_close(result.double(), right, **tolerance)
        for result, right in zip(torch.autograd.grad(output.loss, leaves), expected, strict=True):
            assert result.dtype == dtype
            torch.testing.assert_close(result.double(), right, **tolerance)
    for leaf, right in zip(leaves, expected, strict=True):  # one of them alone
        for other in leaves:
            other.requires_grad_(other is leaf)
        (result,) = torch.autograd.grad(loss.fused(hidden, weight, pack, policy, **options).loss, leaf)
        torch.testing.assert_close(result.double(), right, **tolerance)


def test_a_worked_example_of_a_soft_cap() -> None:
    """2 tanh(2 h / 2) with h = atanh(1/2) is 1: probabilities e/(e + 1) and 1/(e + 1), and the slope there is 3/4."""
    one = torch.tensor([[1.0]], dtype=torch.float64).requires_grad_()
    weight = torch.tensor([[0.5], [0.0]], dtype=torch.float64).atanh()
    logprob, entropy = loss.linear_logprob(one, weight, torch.tensor([0]), factor=2.0, softcap=2.0)
    p = torch.e / (torch.e + 1.0)
    assert logprob.item() == pytest.approx(math.log(p))
    assert entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    (by_hidden,) = torch.autograd.grad(logprob.sum(), one)
    assert by_hidden.item() == pytest.approx((1 - p) * 0.75 * 2.0 * math.atanh(0.5))


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ANSWERED])
def test_losses_of_further_answers_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"reads the model's answer '[\w:.]+'.*use update.loss\(pack.run"):
        loss.fused(*problem(), LOSSES[name])


def test_a_worked_example() -> None:
    """Two tokens of logits ln 3 and 0: probabilities 3/4 and 1/4."""
    hidden = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([3.0, 1.0], dtype=torch.float64).log()[:, None].requires_grad_()
    logprob, entropy = loss.linear_logprob(hidden, weight, torch.tensor([1]))
    quarter = torch.tensor([0.25], dtype=torch.float64)
    assert torch.allclose(logprob, quarter.log())
    assert torch.allclose(entropy, -(0.25 * quarter.log() + 0.75 * (3 * quarter).log()))
    (by_weight,) = torch.autograd.grad(logprob.sum(), weight)
    assert by_weight.flatten().tolist() == pytest.approx([-0.75, 0.75])


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(0, 20),
    tokens=st.integers(1, 9),
    size=st.integers(1, 5),
    vocabulary=st.integers(1, 30),
    std=st.sampled_from([0.0, 1.0, 30.0]),
    workspace=st.sampled_from([None, 1, 5000]),
    factor=st.sampled_from([1.0, 0.1, 3.0]),
    softcap=st.sampled_from([None, 0.5, 30.0]),
    with_bias=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_linear_logprob_is_its_definition(
    rows: int,
    tokens: int,
    size: int,
    vocabulary: int,
    std: float,
    workspace: int | None,
    factor: float,
    softcap: float | None,
    with_bias: bool,
    seed: int,
) -> None:
    make = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    hidden, weight = normal(tokens, size).requires_grad_(), (std * normal(vocabulary, size)).requires_grad_()
    source_row, target = (torch.randint(0, high, (rows,), generator=make) for high in (tokens, vocabulary))
    scale = torch.rand(rows, generator=make, dtype=torch.float64) + 0.5
    pairs = SimpleNamespace(source_row=source_row, target=target, streams=SimpleNamespace(inverse_temperature=scale))
    head = {"bias": normal(vocabulary).requires_grad_() if with_bias else None, "factor": factor, "softcap": softcap}
    leaves = [hidden, weight] + ([head["bias"]] if with_bias else [])
    exact = naive(hidden, weight, pairs, **head)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(head_module._TILE, "cpu", 4)
        result = loss.linear_logprob(hidden, weight, target, scale, source_row=source_row, workspace=workspace, **head)
        mix = normal(2, rows)
        gradients = [
            torch.autograd.grad((mix[0] * one).sum() + (mix[1] * other).sum(), leaves)
            for one, other in (result, (exact.logprob, exact.entropy))
        ]
    torch.testing.assert_close(result[0], exact.logprob, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(result[1], exact.entropy, rtol=1e-11, atol=1e-11)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10 * (1 + factor * std))


@BOTH
def test_no_gradient_is_made_where_none_is_needed(policy: loss.Loss) -> None:
    hidden, weight, pack = problem()
    value = loss.fused(hidden, weight, pack, policy).loss
    expected = torch.autograd.grad(value, (hidden, weight))
    with torch.no_grad():
        output = loss.fused(hidden, weight, pack, policy)
    assert not output.loss.requires_grad
    assert torch.equal(output.loss, value)
    for place in (0, 1):
        inputs = [hidden.detach(), weight.detach()]
        inputs[place].requires_grad_()
        loss.fused(*inputs, pack, policy).loss.backward()
        torch.testing.assert_close(inputs[place].grad, expected[place], rtol=1e-12, atol=1e-14)
        assert inputs[1 - place].grad is None


def test_log_probs_are_detached_and_always_there() -> None:
    hidden, weight, pack = problem()
    exact = naive(hidden, weight, pack)
    for policy in (EVERYTHING, SEQUENCES):
        output = loss.fused(hidden, weight, pack, policy)
        assert not output.logprob.requires_grad
        assert not output.entropy.requires_grad
        torch.testing.assert_close(output.logprob, exact.logprob.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(output.entropy, exact.entropy.detach(), rtol=1e-12, atol=1e-12)


@BOTH
def test_backward_scales_and_may_come_twice(policy: loss.Loss) -> None:
    hidden, weight, pack = problem()
    value = loss.fused(hidden, weight, pack, policy).loss
    once = torch.autograd.grad(value, (hidden, weight), retain_graph=True)
    (3.0 * value + 1.0).backward()
    torch.testing.assert_close(hidden.grad, 3.0 * once[0])
    torch.testing.assert_close(weight.grad, 3.0 * once[1])


@BOTH
def test_no_rows_and_one_row(policy: loss.Loss) -> None:
    hidden, weight, pack = problem()
    for count in (0, 1):
        streams = {name: values[:count] for name, values in pack.streams.items()}
        streams["sequence"] = torch.zeros(count, dtype=torch.int64)
        few = pack_of(streams)
        few.streams["inverse_temperature"] = streams["inverse_temperature"]
        output = loss.fused(hidden, weight, few, policy)
        value, _ = policy(naive(hidden, weight, few), few)
        torch.testing.assert_close(output.loss, value)
        assert output.logprob.shape == (count,)
        for result, right in zip(
            differentiate(output.loss, hidden, weight), differentiate(value, hidden, weight), strict=True
        ):
            torch.testing.assert_close(result, right)


@BOTH
@pytest.mark.parametrize("junk", [float("nan"), float("-inf"), float("inf")])
def test_untrained_rows_count_nowhere(policy: loss.Loss, junk: float) -> None:
    hidden, weight, pack = problem()
    left_out = torch.arange(len(pack.target)) % 3 == 0
    for name, values in pack.streams.items():
        if name in ("weight_kl", "weight_entropy", "advantage_positive", "advantage_negative"):
            values[left_out] = 0.0
        elif values.is_floating_point() and name != "inverse_temperature":
            values[left_out] = junk
    output = loss.fused(hidden, weight, pack, policy)
    assert output.loss.isfinite()
    gradients = torch.autograd.grad(output.loss, (hidden, weight))
    assert all(gradient.isfinite().all() for gradient in gradients)
    only = torch.zeros(TOKENS, dtype=torch.bool).scatter(0, pack.source_row[~left_out], value=True)
    assert (gradients[0][~only] == 0).all()
    assert all(total.isfinite() for total in output.metrics.values())


def test_all_clipped_has_no_gradient() -> None:
    hidden, weight, pack = problem()
    up = pack.streams.advantage_positive > 0
    now = naive(hidden, weight, pack).logprob.detach()
    pack.streams["old_logprob"] = torch.where(up, now - 3.0, now + 3.0)
    output = loss.fused(hidden, weight, pack, loss.Policy())
    assert output.metrics["clip_fraction"] == len(now)
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(output.loss, (hidden, weight)))


def test_a_target_that_cannot_be_is_finite() -> None:
    """Logits so far apart that e^x is 0: a log-prob of -1e4 and below."""
    hidden, weight, pack = problem(dtype=torch.float32)
    output = loss.fused(hidden, 1e4 * weight.detach(), pack, EVERYTHING)
    assert output.logprob.min() < -1e4
    assert output.loss.isfinite()
    assert torch.autograd.grad(output.loss, hidden)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head", ["plain", "all"])
@BOTH
def test_logits_are_computed_in_fp32_for_every_input_dtype(policy: loss.Loss, head: str, dtype: torch.dtype) -> None:
    hidden, weight, pack = problem(dtype=dtype)
    options = {} if head == "plain" else head_of(head, dtype)
    leaves = [hidden, weight] + ([options["bias"]] if "bias" in options else [])
    wide = [value.detach().double().requires_grad_() for value in leaves]
    exact = naive(wide[0], wide[1], pack, **(options | ({"bias": wide[2]} if "bias" in options else {})))
    expected = torch.autograd.grad(policy(exact, pack)[0], wide)
    output = loss.fused(hidden, weight, pack, policy, **options)
    assert output.logprob.dtype == output.entropy.dtype == torch.float32
    assert (output.logprob - exact.logprob).abs().max() <= 1e-5
    assert (output.entropy - exact.entropy).abs().max() <= 1e-5
    for result, right, value in zip(torch.autograd.grad(output.loss, leaves), expected, leaves, strict=True):
        assert result.dtype == dtype
        assert (result.double() - right).norm() <= max(1e-5, 1.5 * torch.finfo(value.dtype).eps) * right.norm()


def test_two_dtypes_are_computed_in_the_wider_one() -> None:
    hidden, weight, pack = problem(dtype=torch.float32)
    half = hidden.detach().bfloat16().requires_grad_()
    output = loss.fused(half, weight, pack, EVERYTHING)
    widened = loss.fused(half.float(), weight, pack, EVERYTHING)
    assert torch.equal(output.loss, widened.loss)
    by_half, by_weight = torch.autograd.grad(output.loss, (half, weight))
    assert by_half.dtype == torch.bfloat16
    assert torch.equal(by_weight, torch.autograd.grad(widened.loss, weight)[0])


@BOTH
def test_autocast_changes_nothing(policy: loss.Loss) -> None:
    hidden, weight, pack = problem(dtype=torch.float32)
    plain = loss.fused(hidden, weight, pack, policy)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = loss.fused(hidden, weight, pack, policy)
        gradients = torch.autograd.grad(output.loss, (hidden, weight))
    assert torch.equal(output.loss, plain.loss)
    for result, right in zip(gradients, torch.autograd.grad(plain.loss, (hidden, weight)), strict=True):
        assert torch.equal(result, right)


def test_small_weights_do_not_vanish_in_fp16() -> None:
    """Loss scaling multiplies the result of the forward pass, which must not have been rounded to zero."""
    hidden, weight, pack = problem(dtype=torch.float16)
    for name in ("weight_kl", "weight_entropy", "advantage_positive", "advantage_negative"):
        pack.streams[name] = pack.streams[name] * 1e-7
    wide = [value.detach().double().requires_grad_() for value in (hidden, weight)]
    expected = torch.autograd.grad(EVERYTHING(naive(*wide, pack), pack)[0] * 2.0**16, wide)
    output = loss.fused(hidden, weight, pack, EVERYTHING)
    for result, right in zip(torch.autograd.grad(output.loss * 2.0**16, (hidden, weight)), expected, strict=True):
        torch.testing.assert_close(result.double(), right, rtol=2e-3, atol=1e-7)


@pytest.mark.usefixtures("small_tiles")
@BOTH
def test_the_same_bits_each_time_and_beside_any_rows(policy: loss.Loss) -> None:
    hidden, weight, pack = problem(dtype=torch.float32)
    output = loss.fused(hidden, weight, pack, policy, workspace=1)
    gradients = torch.autograd.grad(output.loss, (hidden, weight))
    again = loss.fused(hidden, weight, pack, policy, workspace=1)
    assert torch.equal(output.loss, again.loss)
    for result, right in zip(torch.autograd.grad(again.loss, (hidden, weight)), gradients, strict=True):
        assert torch.equal(result, right)
    scale = pack.streams.inverse_temperature
    for rows in (slice(11, 12), slice(5, 27), torch.randperm(27)):
        logprob, entropy = loss.linear_logprob(
            hidden, weight, pack.target[rows], scale[rows], source_row=pack.source_row[rows]
        )
        assert torch.equal(logprob, output.logprob[rows])
        assert torch.equal(entropy, output.entropy[rows])


def test_logits_fit_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = torch.randn(1, 8).requires_grad_(), torch.randn(1000, 8).requires_grad_()
    sizes: list[tuple[int, int]] = []
    original = head_module.LMHead.logits

    def record(head: head_module.LMHead, states: Tensor) -> Tensor:
        logits = original(head, states)
        sizes.append((logits.untyped_storage().nbytes(), len(logits)))
        return logits

    monkeypatch.setattr(head_module.LMHead, "logits", record)
    count = 3000
    pairs = {"target": torch.zeros(count, dtype=torch.int64), "source_row": torch.zeros(count, dtype=torch.int64)}
    for workspace, largest in ((1, 256 * 4000), (3_000_000, 3_000_000), (2**30, 2**30)):
        sizes.clear()
        loss.linear_logprob(hidden, weight, workspace=workspace, **pairs)[0].sum().backward()
        assert max(bytes_there for bytes_there, _ in sizes) <= largest
        assert sum(rows for _, rows in sizes) == 2 * count  # forward, and once more in the backward pass


def test_invalid_arguments_are_rejected() -> None:
    hidden, weight, pack = problem()
    target = pack.target

    def head_with(**options: object) -> None:
        loss.fused(hidden, weight, pack, EVERYTHING, **options)

    cases = [
        ("policy is 'ppo'; give a loss component", lambda: loss.fused(hidden, weight, pack, "ppo")),
        ("hidden has shape", lambda: loss.linear_logprob(hidden[0], weight, target)),
        ("give .tokens, size. and .vocabulary, size.", lambda: loss.linear_logprob(hidden, weight.T, target)),
        ("weight is torch.int64; give bfloat16", lambda: loss.linear_logprob(hidden, weight.long(), target)),
        ("target is torch.int32", lambda: loss.linear_logprob(hidden, weight, target.int())),
        ("weight is on meta, hidden on cpu", lambda: loss.linear_logprob(hidden, weight.to("meta"), target)),
        (
            "inverse_temperature has shape .3,., but target has .27,",
            lambda: loss.linear_logprob(hidden, weight, target, torch.ones(3), source_row=pack.source_row),
        ),
        (
            r"source_row\[\d+\] is 21; give numbers from 0 to 20",
            lambda: loss.linear_logprob(hidden, weight, target),
        ),
        (r"target\[0\] is 37", lambda: loss.linear_logprob(hidden, weight, torch.tensor([37]))),
        ("detach it", lambda: loss.linear_logprob(hidden, weight, target[:1], torch.ones(1, requires_grad=True))),
        ("bias has shape .36,.; give .vocabulary., here .37.", lambda: head_with(bias=torch.zeros(36))),
        ("bias is torch.int64; give bfloat16", lambda: head_with(bias=torch.zeros(37, dtype=torch.int64))),
        ("bias is on meta, hidden on cpu", lambda: head_with(bias=torch.zeros(37, device="meta"))),
        ("softcap=0.0 is not possible; give a finite number above 0", lambda: head_with(softcap=0.0)),
        ("factor=-1.0 is not possible", lambda: head_with(factor=-1.0)),
        ("factor=nan is not possible", lambda: head_with(factor=float("nan"))),
        ("workspace=0", lambda: loss.fused(hidden, weight, pack, EVERYTHING, workspace=0)),
    ]
    for message, call in cases:
        with pytest.raises(InvalidInputError, match=message):
            call()
    del pack.streams["old_logprob"]
    with pytest.raises(InvalidInputError, match="has no stream 'old_logprob'"):
        loss.fused(hidden, weight, pack, EVERYTHING)
