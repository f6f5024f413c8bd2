"""Products of matrices into memory that is there, by whoever is the fastest to make them."""

from __future__ import annotations

import torch
from torch import Tensor

# Bytes of a product that are made at a time where they come in new memory: they are in the cache when they are moved.
_BLOCK = 2**22


def multiply(left: Tensor, right: Tensor, out: Tensor, *, add: bool = False) -> None:
    """A product of matrices into `out`, or added to it, in the precision of `out`."""
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
    """Return whether oneDNN uses registers of 512 bits: on CPUs of AMD, MKL leaves half of those idle."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and _has_onednn()


def _has_onednn() -> bool:
    return torch._C._get_mkldnn_enabled() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # noqa: SLF001


def _by_onednn(left: Tensor, right: Tensor) -> bool:
    """Return whether oneDNN multiplies: fp32 on a CPU, if torch has it and it is faster than MKL's torch.mm.

    It is where the right one is transposed, as the weight behind hidden states, and with registers of 512 bits where
    neither is, as for the gradient by the states. It is not where the left one is transposed, as for the gradient by
    the weight: its product comes in new memory and has yet to be added, where MKL does all at once.
    """
    if left.device.type != "cpu" or left.dtype != torch.float32 or not _has_onednn():
        return False
    return right.t().is_contiguous() or (left.is_contiguous() and onednn_is_fast())


def _multiply_by_blocks(left: Tensor, right: Tensor, out: Tensor) -> None:
    """The same by oneDNN, which gives its product in new memory: so much of it at a time as stays in the cache."""
    rows, columns = out.shape
    by_rows = rows > columns
    count = max(1, _BLOCK // (min(rows, columns) * out.itemsize))
    for begin in range(0, max(rows, columns), count):
        part = slice(begin, begin + count)
        block = (part, slice(None)) if by_rows else (slice(None), part)
        factors = (left[part], right.t()) if by_rows else (left, right.t()[part])
        product = multiply_by_onednn(*factors)
        out[block].copy_(product)
        del product  # before the next one is made
