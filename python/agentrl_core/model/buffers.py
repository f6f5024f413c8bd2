"""Reusable memory for packs, owned by the trainer and pinned on machines with CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError

_TURNS = 2  # a pack may still be on its way to the device while the next one is written


class PackBuffers:
    """Memory that the packs of `Update.pack(buffers=...)` are written into, instead of new memory for each.

    The tensors of a pack are valid until the next pack is requested. `pack.to(device)` may be asynchronous: there are
    two alternating buffers, and a buffer is overwritten only after the device has finished the work that was queued
    before the next pack was requested.

    Args:
        max_tokens: tokens of a pack; longer arrays (pairs of many branches) grow as needed.
        pinned: pin the memory on machines with CUDA, so that copies to the device are fast and asynchronous.

    Raises:
        InvalidInputError: `max_tokens` is negative.

    Example:
        >>> from agentrl_core.model.buffers import PackBuffers
        >>> buffers = PackBuffers(max_tokens=4)
        >>> buffers.take("target", 3, "int64").shape
        (3,)
    """

    def __init__(self, max_tokens: int, *, pinned: bool = True) -> None:
        if max_tokens < 0:
            raise InvalidInputError(f"max_tokens is {max_tokens}; give a number of tokens of at least 0")
        self._least = max_tokens + 1  # n pieces have n + 1 bounds
        self._pinned = pinned and torch.cuda.is_available()
        self._turn = 0
        self._memory: list[dict[str, NDArray[Any]]] = [{} for _ in range(_TURNS)]
        self._owners: list[dict[str, torch.Tensor]] = [{} for _ in range(_TURNS)]
        self._done: list[torch.cuda.Event | None] = [None] * _TURNS

    def next(self) -> None:
        """Begin the next pack, which overwrites the memory of the pack before the last."""
        if self._pinned:
            event = torch.cuda.Event()
            event.record()
            self._done[self._turn] = event
        self._turn = (self._turn + 1) % _TURNS
        last_use = self._done[self._turn]
        if last_use is not None:
            last_use.synchronize()

    def take(self, name: str, length: int, dtype: Any) -> NDArray[Any]:
        """Return uninitialised memory for an array of `length` values of the current pack."""
        memory = self._memory[self._turn]
        if name not in memory or len(memory[name]) < length:
            count = max(self._least, length + length // 4)
            kind = getattr(torch, np.dtype(dtype).name)
            tensor = torch.empty(count, dtype=kind, pin_memory=self._pinned)
            self._owners[self._turn][name], memory[name] = tensor, tensor.numpy()
        return memory[name][:length]
