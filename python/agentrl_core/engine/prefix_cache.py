"""Compute common prefixes of requests once: cache keys and values, and find the prefixes that prompts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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
    """LRU cache of keys and values of shared prefixes and ended segments, for later requests with equal first tokens.

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
        """Size in bytes of all cached keys and values."""
        return sum(entry.bytes for entry in self._entries)

    def find(self, tokens: NDArray[np.int32]) -> tuple[Layers, int]:
        """Return keys and values of the longest cached prefix of some tokens, and its length."""
        index, count = self._longest(tokens)
        if count == 0:
            return [], 0
        self._clock += 1
        self._entries[index].used = self._clock
        return [(keys[:, :count], values[:, :count]) for keys, values in self._entries[index].layers], count

    def keep(self, tokens: NDArray[np.int32], layers: Layers) -> None:
        """Cache the keys and values of some tokens, unless they are cached already or larger than the limit."""
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

    def clear(self) -> None:
        """Clear the cache, since the weights have changed."""
        self._entries = []

    def _longest(self, tokens: NDArray[np.int32]) -> tuple[int, int]:
        """Return the entry that shares the longest prefix with some tokens, and its length."""
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


# A shared prefix costs a separate forward pass, which on a CPU takes as long as about ten tokens.
LEAST_SAVED = 64


class SharedPrefix(NamedTuple):
    """The first `length` tokens of prompt number `prompt`, the first prompt with this prefix."""

    prompt: int
    length: int


def shared_prefixes(prompts: Sequence[NDArray[np.int32]], least_saved: int = LEAST_SAVED) -> list[list[SharedPrefix]]:
    """Return the shared prefixes that save enough tokens to compute them separately, in order of computation.

    The prefixes of one inner list can be computed together, each from a prefix in an earlier list. A prefix of `length`
    tokens that n prompts share, and that extends a prefix of `before` tokens, saves (n - 1)(length - before) tokens.

    Args:
        prompts: int32 [tokens] each, without negative tokens.
        least_saved: fewest tokens that a prefix must save.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.engine.prefix_cache import shared_prefixes
        >>> prompts = [np.array(tokens, np.int32) for tokens in ([7, 8, 1, 1], [7, 8, 1, 2], [7, 8, 3])]
        >>> shared_prefixes(prompts, least_saved=1)
        [[SharedPrefix(prompt=0, length=2)], [SharedPrefix(prompt=0, length=3)]]
    """
    order = sorted(range(len(prompts)), key=lambda index: prompts[index].astype(">i4").tobytes())
    common = np.array([_common(prompts[one], prompts[other]) for one, other in pairwise(order)], np.int64)
    levels: list[list[SharedPrefix]] = []
    ranges = [(0, len(order), 0, 0)]  # of the order, with the tokens and the level of the beginning before
    while ranges:
        begin, end, before, level = ranges.pop()
        if end - begin < 2:
            continue
        inside = common[begin : end - 1]
        length = int(inside.min())
        if (end - begin - 1) * (length - before) >= least_saved:
            if level == len(levels):
                levels.append([])
            levels[level].append(SharedPrefix(min(order[begin:end]), length))
            before, level = length, level + 1
        edges = [begin, *(begin + 1 + np.flatnonzero(inside == length)).tolist(), end]
        ranges += [(*part, before, level) for part in pairwise(edges)]
    return levels


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Return the length of the common prefix of two prompts."""
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    return int(differs.argmax()) if differs.any() else count
