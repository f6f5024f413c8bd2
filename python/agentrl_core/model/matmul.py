"""Matrix products in fp32 by oneDNN, which takes half the time of MKL on AMD CPUs: linear layers and the head."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from agentrl_core.model.replaced_forward import forwards_replaced, is_compiled

_LEAST = 2**20  # multiplications from which oneDNN saves more than its overhead of 10 microseconds a call
# Bytes of a product in new memory that are computed at a time, so that they are still in the cache when copied.
_BLOCK = 2**22


def multiply(left: Tensor, right: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Multiply two matrices into `out`, or add their product to it, in the precision of `out`."""
    same = left.dtype == out.dtype
    if same and not add and left.numel() and right.numel() and _by_onednn(left, right):
        _multiply_by_blocks(left, right, out)
    elif same and add:
        out.addmm_(left, right)
    elif same:
        torch.mm(left, right, out=out)
    elif add:
        torch.addmm(out, left, right, out_dtype=out.dtype, out=out)
    else:
        torch.mm(left, right, out_dtype=out.dtype, out=out)


def multiply_by_onednn(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `left @ right.T + bias`: `[..., K]`, `[N, K]` and `[N]` to `[..., N]`, fp32 on a CPU."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")  # noqa: SLF001
    return product


def onednn_is_fast() -> bool:
    """Return whether oneDNN uses 512-bit registers; MKL leaves half of them idle on AMD CPUs."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and _has_onednn()


def _has_onednn() -> bool:
    return torch._C._get_mkldnn_enabled() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # noqa: SLF001


def _by_onednn(left: Tensor, right: Tensor) -> bool:
    """Return whether oneDNN computes a product: in fp32 on a CPU, if torch has oneDNN and it is faster than MKL.

    It is faster if the right matrix is transposed (hidden states times the weight), and with 512-bit registers if
    neither is (the gradient by the states). It is slower if the left one is transposed (the gradient by the weight):
    oneDNN returns the product in new memory, which must then be added, while MKL adds at once.
    """
    if left.device.type != "cpu" or left.dtype != torch.float32 or not _has_onednn():
        return False
    return right.t().is_contiguous() or (left.is_contiguous() and onednn_is_fast())


def _multiply_by_blocks(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Multiply two matrices into `out` by oneDNN, in blocks of rows that stay in the cache until they are copied."""
    rows, columns = out.shape
    by_rows = rows > columns
    count = max(1, _BLOCK // (min(rows, columns) * out.itemsize))
    for begin in range(0, max(rows, columns), count):
        part = slice(begin, begin + count)
        block = (part, slice(None)) if by_rows else (slice(None), part)
        factors = (left[part], right.t()) if by_rows else (left, right.t()[part])
        product = multiply_by_onednn(*factors)
        out[block].copy_(product)
        del product  # frees its memory before the next block is computed


def fast_linear_layers(model: nn.Module, rows: int, but: nn.Module | None = None) -> AbstractContextManager[None]:
    """Compute the linear layers of a model by oneDNN if that is faster, in this thread inside a `with` block.

    It applies to forward and backward in fp32 on CPUs with 512-bit registers, for products of at least a million
    multiplications. Results differ from torch's by rounding alone. Torch's own products are used inside gradient
    checkpointing and other hooks on saved tensors, because these recompute layers outside the block, and in models to
    which torch.compile was applied, because it would not compile them. Only `nn.Linear` modules are affected, not
    products of weights inside other modules, such as eager experts.

    Args:
        model: a module with parameters on one device.
        rows: rows of the largest input.
        but: a layer that keeps its own forward.
    """
    large = [each for each in _linear_layers(model) if rows * each.weight.numel() >= _LEAST and each is not but]
    return forwards_replaced(dict.fromkeys(large, _layer_by_onednn)) if large else nullcontext()


def fast_linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `nn.functional.linear`, by oneDNN if that is faster for a product of this size."""
    if rows.device.type == "cpu" and onednn_is_fast() and not torch.compiler.is_compiling():
        return _linear(rows, weight, bias)
    return nn.functional.linear(rows, weight, bias)


def fast_from(model: nn.Module) -> float:
    """Return the number of rows from which `fast_linear_layers` uses oneDNN; infinity: never for this model."""
    sizes = [each.weight.numel() for each in _linear_layers(model)]
    return _LEAST / max(sizes) if any(sizes) else math.inf


def _linear_layers(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a model that oneDNN may compute; none if it is not faster."""
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32 or not onednn_is_fast() or is_compiled(model):
        return []
    return [each for each in model.modules() if isinstance(each, nn.Linear)]


def _layer_by_onednn(own: Any, *args: Any, **given: Any) -> Any:
    """Compute a linear layer by oneDNN; `own` is its original forward."""
    if getattr(own, "__func__", None) is not nn.Linear.forward or len(args) != 1 or given:  # replaced, or nested
        return own(*args, **given)
    return _linear(args[0], own.__self__.weight, own.__self__.bias)


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `nn.functional.linear`, by oneDNN if the product is large and its tensors are plain fp32 tensors."""
    if not (
        type(rows) in _PLAIN
        and type(weight) in _PLAIN
        and (bias is None or type(bias) in _PLAIN)
        and rows.dtype == weight.dtype == torch.float32
        and rows.numel() * weight.shape[0] >= _LEAST
        and not torch.is_autocast_enabled("cpu")
        and torch._C._autograd._top_saved_tensors_default_hooks(False) is None  # noqa: FBT003, SLF001
    ):
        return nn.functional.linear(rows, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call, no-any-return]
    return multiply_by_onednn(rows, weight, bias)


_PLAIN = (Tensor, nn.Parameter)


class _Linear(torch.autograd.Function):
    """A linear layer whose three products (forward, and both gradients) are computed by oneDNN."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        by_rows, by_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(rows if by_weight else None, weight if by_rows else None)
        return multiply_by_onednn(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        flat = gradient.reshape(-1, gradient.shape[-1])
        by_weight = multiply_by_onednn(flat.t(), rows.reshape(-1, rows.shape[-1]).t()) if rows is not None else None
        by_rows = multiply_by_onednn(gradient, weight.t()) if weight is not None else None
        return by_rows, by_weight, flat.sum(0) if ctx.needs_input_grad[2] else None
