"""Products of matrices into memory that is there, by whoever is the fastest to make them."""

from __future__ import annotations

import torch
from torch import Tensor

# Bytes of a product that are made at a time where they come in new memory: they are in the cache when they are moved.
_BLOCK = 2**22


def multiply(left: Tensor, right: Tensor, out: Tensor, *, add: bool = False) -> None:
    """A product of matrices into `out`, or added to it, in the precision of `out`."""
    same = left.dtype == out.dtype
    if _by_onednn(left) and same and left.numel() and right.numel():
        _multiply_by_blocks(left, right, out, add=add)
    elif same and add:
        out.addmm_(left, right)
    elif same:
        torch.mm(left, right, out=out)
    elif add:
        torch.addmm(out, left, right, out_dtype=out.dtype, out=out)
    else:
        torch.mm(left, right, out_dtype=out.dtype, out=out)


def _by_onednn(matrix: Tensor) -> bool:
    """Whether oneDNN multiplies: fp32 on a CPU, where torch has it.

    Beside it torch.mm, which is MKL's, takes twice as long on CPUs of AMD: it leaves half of their wide registers idle.
    """
    on_cpu = matrix.device.type == "cpu" and matrix.dtype == torch.float32
    return on_cpu and torch._C._get_mkldnn_enabled() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # noqa: SLF001


def _multiply_by_blocks(left: Tensor, right: Tensor, out: Tensor, *, add: bool) -> None:
    """The same by oneDNN, which gives its product in new memory: so much of it at a time as stays in the cache."""
    rows, columns = out.shape
    by_rows = rows > columns
    count = max(1, _BLOCK // (min(rows, columns) * out.itemsize))
    for begin in range(0, max(rows, columns), count):
        part = slice(begin, begin + count)
        block = (part, slice(None)) if by_rows else (slice(None), part)
        factors = (left[part], right.t()) if by_rows else (left, right.t()[part])
        product = torch.ops.mkldnn._linear_pointwise(*factors, None, "none", [], "")  # noqa: SLF001
        if add:
            out[block].add_(product)
        else:
            out[block].copy_(product)
        del product  # before the next one is made
