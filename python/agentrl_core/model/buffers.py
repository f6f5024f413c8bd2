"""Memory for packs that a trainer owns: filled again and again, pinned where there is CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError

_TURNS = 2  # a pack may still be on its way to the device while the next one is written


class PackBuffers:
    """Memory that the packs of `Update.pack(buffers=...)` are written into, instead of new memory for each.

    The tensors of a pack are valid until the next pack is asked for. Copies to the device that are still under way are
    waited for, so `pack.to(device)` may be asynchronous: memory is used in two turns, and the one of a pack is written
    again when the device has done what it was given before that pack's successor was asked for.

    Args:
        max_tokens: tokens of a pack; arrays that turn out longer (pairs of many branches) grow.
        pinned: lock the pages in memory where there is CUDA, so that copies to the device are fast and asynchronous.

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
            raise InvalidInputError(f"max_tokens is {max_tokens}; give a number of tokens from 0")
        self._least = max_tokens + 1  # bounds of pieces are one more than pieces
        self._pinned = pinned and torch.cuda.is_available()
        self._turn = 0
        self._memory: list[dict[str, NDArray[Any]]] = [{} for _ in range(_TURNS)]
        self._owners: list[dict[str, torch.Tensor]] = [{} for _ in range(_TURNS)]
        self._done: list[torch.cuda.Event | None] = [None] * _TURNS

    def next(self) -> None:
        """Begin the next pack: the memory of the one before the last is free again."""
        if self._pinned:
            event = torch.cuda.Event()
            event.record()
            self._done[self._turn] = event
        self._turn = (self._turn + 1) % _TURNS
        done = self._done[self._turn]
        if done is not None:
            done.synchronize()

    def take(self, name: str, length: int, dtype: Any) -> NDArray[Any]:
        """Memory of an array of the present pack: `length` values, of whatever was there before."""
        memory = self._memory[self._turn]
        if name not in memory or len(memory[name]) < length:
            count = max(self._least, length + length // 4)
            kind = getattr(torch, np.dtype(dtype).name)
            tensor = torch.empty(count, dtype=kind, pin_memory=self._pinned)
            self._owners[self._turn][name], memory[name] = tensor, tensor.numpy()
        return memory[name][:length]
