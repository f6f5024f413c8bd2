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


def _by_onednn(left: Tensor, right: Tensor) -> bool:
    """Return whether oneDNN multiplies: fp32 on a CPU, if torch has it and it is faster than MKL's torch.mm.

    It is where the right one is transposed, as the weight behind hidden states, and with registers of 512 bits where
    neither is, as for the gradient by the states: on CPUs of AMD, MKL leaves half of those idle. It is not where the
    left one is transposed, as for the gradient by the weight: it works on a copy of that one, and its product comes in
    new memory and has yet to be added, where MKL does all at once.
    """
    if left.device.type != "cpu" or left.dtype != torch.float32 or not torch._C._get_mkldnn_enabled():  # noqa: SLF001
        return False
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and left.is_contiguous()
    return (wide or right.t().is_contiguous()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _multiply_by_blocks(left: Tensor, right: Tensor, out: Tensor) -> None:
    """The same by oneDNN, which gives its product in new memory: so much of it at a time as stays in the cache."""
    rows, columns = out.shape
    by_rows = rows > columns
    count = max(1, _BLOCK // (min(rows, columns) * out.itemsize))
    for begin in range(0, max(rows, columns), count):
        part = slice(begin, begin + count)
        block = (part, slice(None)) if by_rows else (slice(None), part)
        factors = (left[part], right.t()) if by_rows else (left, right.t()[part])
        product = torch.ops.mkldnn._linear_pointwise(*factors, None, "none", [], "")  # noqa: SLF001
        out[block].copy_(product)
        del product  # before the next one is made
