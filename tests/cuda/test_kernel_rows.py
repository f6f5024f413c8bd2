"""Compare the head on kernels with the head in PyTorch: the calling code, with the kernels compiled for the host."""

from __future__ import annotations

import pytest
import torch
from host_kernels import HostKernels
from torch import Tensor

from agentrl_core import loss
from agentrl_core.model import cuda_kernels
from agentrl_core.model import lm_head as head_module

ROWS, VOCABULARY, SIZE = 11, 203, 8


@pytest.fixture
def few_threads(host: HostKernels, monkeypatch: pytest.MonkeyPatch) -> HostKernels:
    monkeypatch.setattr(head_module, "_THREADS", 5)
    return host


def problem(seed: int = 0) -> dict[str, Tensor]:
    make = torch.Generator().manual_seed(seed)
    return {
        "logits": 3.0 * torch.randn(ROWS, VOCABULARY, generator=make),
        "target": torch.randint(0, VOCABULARY, (ROWS,), generator=make),
        "scale": torch.rand(ROWS, generator=make) + 0.5,
        "by_logprob": torch.randn(ROWS, generator=make),
        "by_entropy": torch.randn(ROWS, generator=make),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("softcap", [None, 4.0])
def test_rows_agree(
    few_threads: HostKernels, dtype: torch.dtype, with_entropy: bool, again: bool, softcap: float | None
) -> None:
    results = []
    for rows in (head_module.LogitOps(softcap), head_module.KernelLogitOps(few_threads, softcap)):
        inputs = problem()
        logits, target, scale = inputs["logits"].clone(), inputs["target"], inputs["scale"]
        logprob, entropy, lse = rows.statistics(logits, target, scale)
        if again:
            logits = inputs["logits"].clone()
            rows.again(logits, scale, lse)
        by_entropy = inputs["by_entropy"] if with_entropy else None
        gradient = rows.gradient(logits, target, scale, lse, entropy, inputs["by_logprob"], by_entropy, dtype)
        assert gradient.dtype == dtype
        assert gradient.shape == (ROWS, VOCABULARY)
        results.append((logprob, entropy, lse, gradient.float()))
    for actual, right in zip(results[1][:3], results[0][:3], strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-6, atol=1e-5)
    tolerance = 2.0**-8 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(results[1][3], results[0][3], rtol=tolerance, atol=3e-6)


@pytest.mark.parametrize("head", [{}, {"softcap": 3, "factor": 1.0}])
def test_the_operation_on_kernels(
    few_threads: HostKernels, monkeypatch: pytest.MonkeyPatch, head: dict[str, float]
) -> None:
    """There are several chunks, the last one padded, in the one buffer that kernels need."""
    make = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, SIZE, generator=make).requires_grad_()
    weight = torch.randn(VOCABULARY, SIZE, generator=make).requires_grad_()
    bias = torch.randn(VOCABULARY, generator=make).requires_grad_() if head else None
    leaves = (hidden, weight) if bias is None else (hidden, weight, bias)
    target = torch.randint(0, VOCABULARY, (ROWS,), generator=make)
    mix = torch.randn(2, ROWS, generator=make)
    results = []
    for kernels in (None, few_threads):
        monkeypatch.setitem(head_module._TILE, "cpu", 4)
        monkeypatch.setattr(cuda_kernels, "kernels", lambda *_, kernels=kernels: kernels)
        logprob, entropy = loss.linear_logprob(hidden, weight, target, bias=bias, workspace=1, **head)
        gradients = torch.autograd.grad((mix[0] * logprob + mix[1] * entropy).sum(), leaves)
        results.append((logprob.detach(), entropy.detach(), *gradients))
    for actual, right in zip(*results, strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-5, atol=1e-5)
