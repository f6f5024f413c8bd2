"""Linear layers on CPUs by oneDNN, which takes half of the time of MKL on those of AMD."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from agentrl_core.model.call import is_compiled
from agentrl_core.model.matmul import multiply_by_onednn, onednn_is_fast

_LEAST = 2**20  # multiplications from which oneDNN's 10 microseconds a call are less than it saves
_LARGEST: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()


def fast_linear_layers(model: nn.Module, rows: int) -> AbstractContextManager[object]:
    """Compute the linear layers of `model` by oneDNN inside the block, forward and backward, where that is faster.

    That is in fp32, on CPUs with registers of 512 bits, which MKL leaves half empty on those of AMD, in products of at
    least a million multiplications. Results differ from torch's by rounding alone. Inside gradient checkpointing and
    other hooks on saved tensors torch's own is taken, since layers are computed again without this block, and in models
    that torch.compile was applied to, which it would not compile.

    Args:
        model: a module with parameters on one device.
        rows: rows of the largest input.
    """
    return _ByOneDNN() if rows >= fast_from(model) else nullcontext()


def fast_from(model: nn.Module) -> float:
    """Return the rows from which `fast_linear_layers` changes anything; infinity: it does not for this model."""
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32 or not onednn_is_fast() or is_compiled(model):
        return math.inf
    largest = _largest(model)
    return _LEAST / largest if largest else math.inf


class _ByOneDNN(TorchFunctionMode):
    """The block: it belongs to its thread, so that another one may use the same model."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is linear and not kwargs and _takes(*args):
            return _Linear.apply(*args) if torch.is_grad_enabled() else multiply_by_onednn(*args)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """A linear layer whose three products are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
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
        by_bias = flat.sum(0) if ctx.needs_input_grad[2:3] == (True,) else None
        return by_rows, by_weight, by_bias


def _takes(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    plain = all(type(each) in (Tensor, nn.Parameter) for each in (rows, weight) + (() if bias is None else (bias,)))
    return (
        plain
        and rows.dtype == weight.dtype == torch.float32
        and weight.dim() == 2
        and rows.numel() * weight.shape[0] >= _LEAST
        and not torch.is_autocast_enabled("cpu")
        and torch._C._autograd._top_saved_tensors_default_hooks(False) is None  # noqa: FBT003, SLF001
    )


def _largest(model: nn.Module) -> int:
    """Return the size of the largest weight of a linear layer."""
    if model not in _LARGEST:
        sizes = [each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear)]
        _LARGEST[model] = max(sizes, default=0)
    return _LARGEST[model]
