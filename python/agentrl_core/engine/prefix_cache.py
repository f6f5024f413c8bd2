"""Keep keys and values that were computed for one request, for those that begin with the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, [heads, tokens, width]."""
_FIRST_ROOM = 16


@dataclass(eq=False)
class _Entry:
    tokens: NDArray[np.int32]
    layers: Layers
    bytes: int
    used: int


class PrefixCache:
    """Keys and values of ended segments, for the next turn of their branch and for forks.

    An entry that extends another replaces it; above the limit the least recently used are evicted.

    Args:
        most_bytes: largest total size of keys and values.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._entries: list[_Entry] = []
        # One row for each entry, padded with -1, so that all are compared at once.
        self._table = np.full((_FIRST_ROOM, _FIRST_ROOM), -1, np.int32)
        self._clock = 0

    @property
    def bytes(self) -> int:
        """Size of all kept keys and values."""
        return sum(entry.bytes for entry in self._entries)

    def find(self, tokens: NDArray[np.int32]) -> tuple[Layers, int]:
        """Return keys and values of the longest known beginning of some tokens, and its number of tokens."""
        index, count = self._longest(tokens)
        if count == 0:
            return [], 0
        self._clock += 1
        self._entries[index].used = self._clock
        return [(keys[:, :count], values[:, :count]) for keys, values in self._entries[index].layers], count

    def keep(self, tokens: NDArray[np.int32], layers: Layers) -> None:
        """Keep what was computed for some tokens, unless it is known or larger than the limit."""
        size = sum(keys.nbytes + values.nbytes for keys, values in layers)
        if not len(tokens) or size > self._most:
            return
        index, count = self._longest(tokens)
        if count == len(tokens):
            return
        self._clock += 1
        entry = _Entry(tokens, layers, size, self._clock)
        if count and count == len(self._entries[index].tokens):
            self._entries[index] = entry
        else:
            index = len(self._entries)
            self._entries.append(entry)
        self._write(index)
        while self.bytes > self._most:
            self._drop(min(range(len(self._entries)), key=lambda one: self._entries[one].used))

    def forget(self) -> None:
        """Drop all, since the weights changed."""
        self._entries = []

    def _longest(self, tokens: NDArray[np.int32]) -> tuple[int, int]:
        """Return the entry with the longest beginning in common with some tokens, and its number of tokens."""
        if not self._entries:
            return 0, 0
        width = min(len(tokens), self._table.shape[1])
        differs = np.ones((len(self._entries), width + 1), np.bool_)  # at the latest after the last token
        np.not_equal(self._table[: len(self._entries), :width], tokens[:width], out=differs[:, :width])
        common = differs.argmax(axis=1)
        index = int(common.argmax())
        return index, int(common[index])

    def _write(self, index: int) -> None:
        tokens = self._entries[index].tokens
        rows, width = self._table.shape
        if index >= rows or len(tokens) > width:
            wider = np.full((max(rows, 2 * index), max(width, 2 * len(tokens))), -1, np.int32)
            wider[:rows, :width] = self._table
            self._table = wider
        self._table[index] = -1
        self._table[index, : len(tokens)] = tokens

    def _drop(self, index: int) -> None:
        last = self._entries.pop()
        if index < len(self._entries):
            self._entries[index] = last
            self._table[index] = self._table[len(self._entries)]
