"""The fused loss on a real GPU: kernels compared with PyTorch, both with fp64."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from agentrl_core import loss
from agentrl_core.model.attention import SequenceAttention, TreeAttention
from agentrl_core.model.pack import Pack, Streams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

ROWS, SIZE, VOCABULARY = 700, 64, 5003  # two tiles, rows that are not aligned
POLICY = loss.Policy(kl=loss.KL(0.1), entropy=0.05)
SWITCH = "AGENTRL_CUDA"


def problem(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Pack]:
    make = torch.Generator().manual_seed(0)
    hidden, weight = (
        torch.randn(rows, SIZE, generator=make).to(dtype) * factor for rows, factor in ((ROWS, 1.0), (VOCABULARY, 0.25))
    )
    near = -torch.rand(4, ROWS, generator=make)
    streams = {
        "inverse_temperature": torch.rand(ROWS, generator=make) + 0.5,
        "weight_kl": torch.full((ROWS,), 1.0 / ROWS),
        "weight_entropy": torch.full((ROWS,), 1.0 / ROWS),
        "old_logprob": near[0] - 8.0,
        "reference_logprob": near[1] - 8.0,
        "advantage_positive": -near[2] / ROWS,
        "advantage_negative": near[3] / ROWS,
    }
    ids, target = torch.arange(ROWS), torch.randint(0, VOCABULARY, (ROWS,), generator=make)
    source_row = torch.randint(0, ROWS, (ROWS,), generator=make)  # some of them several times
    lengths = torch.tensor([0, ROWS], dtype=torch.int32)
    pack = Pack(ids, ids, lengths, ROWS, source_row, target, ids, ids, Streams(streams)).to(device)
    return hidden.to(device).requires_grad_(), weight.to(device).requires_grad_(), pack


def run(
    dtype: torch.dtype, device: str, policy: loss.Loss = POLICY, softcap: float | None = None
) -> tuple[Tensor, ...]:
    """Run a case; one with a soft cap also has a bias."""
    hidden, weight, pack = problem(dtype, device)
    leaves, bias = (hidden, weight), None
    if softcap is not None:
        bias = torch.linspace(-1.0, 1.0, VOCABULARY).to(device, dtype).requires_grad_()
        leaves = (hidden, weight, bias)
    output = loss.fused(hidden, weight, pack, policy, bias=bias, softcap=softcap, workspace=2**24)
    gradients = torch.autograd.grad(output.loss, leaves)
    return tuple(value.detach().cpu() for value in (output.loss, output.logprob, output.entropy, *gradients))


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("policy", [POLICY, replace(POLICY, ratio=loss.Ratio("step"))], ids=["one pass", "two passes"])
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "PyTorch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_equals_the_cpu(
    dtype: torch.dtype,
    kernels: bool,
    policy: loss.Loss,
    softcap: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not kernels:
        monkeypatch.setenv(SWITCH, "0")
    if policy is not POLICY:
        original = Streams.__init__
        monkeypatch.setattr(
            Streams, "__init__", lambda self, values: original(self, {**values, "step": torch.arange(ROWS) // 3})
        )
    actual, exact = run(dtype, "cuda", policy, softcap), run(dtype, "cpu", policy, softcap)
    for one, other in zip(actual[:3], exact[:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for one, other in zip(actual[3:], exact[3:], strict=True):
        assert one.dtype == other.dtype
        limit = {torch.bfloat16: 6e-3, torch.float16: 2e-3}.get(dtype, 1e-5)
        assert (one.double() - other.double()).norm() <= limit * other.double().norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_same_bits_each_time(dtype: torch.dtype) -> None:
    for one, other in zip(run(dtype, "cuda"), run(dtype, "cuda"), strict=True):
        assert torch.equal(one, other)


def test_a_row_does_not_depend_on_others() -> None:
    hidden, weight, pack = problem(torch.bfloat16, "cuda")
    full = loss.fused(hidden, weight, pack, POLICY)
    rows = slice(123, 321)
    vectors = {
        field.name: getattr(pack, field.name)[rows] for field in fields(pack) if field.name in ("source_row", "target")
    }
    streams = Streams({name: values[rows] for name, values in pack.streams.items()})
    part = loss.fused(hidden, weight, replace(pack, **vectors, streams=streams), POLICY)
    assert torch.equal(part.logprob, full.logprob[rows])
    assert torch.equal(part.entropy, full.entropy[rows])


def test_other_streams_of_work() -> None:
    """Kernels run on torch's current stream, on which their inputs are made."""
    hidden, weight, pack = problem(torch.bfloat16, "cuda")
    expected = loss.fused(hidden, weight, pack, POLICY).logprob
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        moved = hidden + torch.zeros(2048, 2048, device="cuda").matmul(torch.zeros(2048, 2048, device="cuda")).sum()
        actual = loss.fused(moved, weight, pack, POLICY).logprob
    torch.cuda.synchronize()
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("window", [None, 2, 50])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("layout", ["sequence", "tree"])
def test_attention_equals_the_cpu(layout: str, softcap: float | None, window: int | None, dtype: torch.dtype) -> None:
    """Values and gradients: varlen and FlexAttention compared with blocks of masked scores in fp64."""
    make = torch.Generator().manual_seed(0)
    count = 437
    states = [torch.randn(count, heads, 32, generator=make).to(dtype) for heads in (4, 2, 2, 4)]
    results = []
    for device, precision in (("cuda", dtype), ("cpu", torch.float64)):
        query, key, value, by_out = (one.to(device, precision).requires_grad_() for one in states)
        if layout == "sequence":
            lies = SequenceAttention(torch.tensor([0, 130, 131, count], dtype=torch.int32, device=device), count - 131)
        else:  # a trunk of 100 tokens with two branches
            rows = torch.arange(count, device=device)
            ends = torch.where((rows >= 100) & (rows < 250), 250, count).to(torch.int32)
            lies = TreeAttention(ends, torch.where(rows < 250, rows, rows - 150))
        out = lies.attend(query, key, value, scaling=0.3, dropout=0.0, window=window, softcap=softcap)
        gradients = torch.autograd.grad((out * by_out.detach()).sum(), (query, key, value))
        results.append([one.detach().cpu().double() for one in (out, *gradients)])
    for actual, right in zip(*results, strict=True):
        assert (actual - right).norm() <= (2e-2 if dtype == torch.bfloat16 else 2e-3) * right.norm() + 1e-6
