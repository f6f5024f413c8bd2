"""A key that differs after weights were written."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def weight_stamp(weights: Iterable[Tensor]) -> tuple[int, ...]:
    """Return the sum of the bits of each weight, or of this rank's shard of it: equal until a weight is written.

        stamp_i = sum over 8-byte words of weight i, mod 2^64

    It reads all weights, at the speed of the memory. Torch's version counters cost less, but miss writes through
    `.data`, by which PEFT merges adapters. Swapped words give the same sum.

    Example:
        >>> import torch
        >>> from agentrl_core.engine.weight_stamp import weight_stamp
        >>> weight = torch.nn.Parameter(torch.ones(3, 3))
        >>> before = weight_stamp([weight])
        >>> weight.data[2, 2] += 1e-6
        >>> weight_stamp([weight]) == before
        False
    """
    return tuple(map(_sum_of_words, weights))


def _sum_of_words(stored: Tensor) -> int:
    weight = getattr(stored, "_local_tensor", stored).detach()  # to_local() gathers pending sums
    if weight.is_meta:
        return 0
    octets = weight.contiguous().reshape(-1).view(torch.uint8)
    if octets.storage_offset() % 8:  # a view of words has to start at one
        octets = octets.clone()
    end = len(octets) // 8 * 8
    return int(octets[:end].view(torch.int64).sum()) + int(octets[end:].sum())
