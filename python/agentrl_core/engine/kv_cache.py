"""The keys and values of rows that generate together, of different lengths, and that come and go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache

from agentrl_core.engine.attention_windows import Windows, masks_of

# The cache grows by this many positions at a time.
_GROWTH = 32
# And by this share of its rows, so that rows that come one by one do not copy it each time.
_MORE_ROWS = 1.5


class KVCache(Cache):
    """Keys and values of every layer: [rows, heads, positions, width], with room for more of both.

    Row b has tokens at positions 0 to lengths[b] - 1. In a step every row writes after its last position and attends,
    through the mask, to its own tokens. The last row moves into the place of a removed one.

    Args:
        lengths: tokens of each row, int64 [B].
        device: device of keys and values.
        dtype: dtype of the mask.
        windows: of the model's layers.
    """

    def __init__(self, lengths: NDArray[np.int64], device: torch.device, dtype: torch.dtype, windows: Windows) -> None:
        super().__init__(layers=[])
        self._windows = windows
        self.lengths = lengths
        self._device = device
        self._dtype = dtype
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._position = self._positions = self._row = torch.empty(0)
        self._set_rows()

    def fill(self, rows: NDArray[np.int64], computed: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take the keys and values of each layer, [rows, heads, positions, width], that were computed for some rows."""
        place = torch.from_numpy(rows).to(self._device)
        for layer, pair in enumerate(computed):
            for store, value in zip((self._keys, self._values), pair, strict=True):
                if layer == len(store):
                    store.append(_room(value, len(self.lengths), self._longest + _GROWTH))
                positions = min(value.shape[2], self._longest)
                store[layer][place, :, :positions] = value[:, :, :positions]

    def row(self, index: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return a copy of the keys and values of each layer of a row, [heads, its tokens, width]."""
        count = int(self.lengths[index])
        layers = zip(self._keys, self._values, strict=True)
        return [(keys[index, :, :count].clone(), values[index, :, :count].clone()) for keys, values in layers]

    def pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return keys and values of each layer, of all rows, with the room after them."""
        count = len(self.lengths)
        return ((keys[:count], values[:count]) for keys, values in zip(self._keys, self._values, strict=True))

    def join(self, other: KVCache, rows: NDArray[np.int64]) -> None:
        """Append rows of another cache; a row may be given several times."""
        before = len(self.lengths)
        count = before + len(rows)
        lengths = np.concatenate([self.lengths, other.lengths[rows]])
        longest = int(lengths.max())
        place = torch.from_numpy(rows).to(self._device)
        for mine, theirs in ((self._keys, other._keys), (self._values, other._values)):
            for layer, source in enumerate(theirs):
                if layer == len(mine):
                    mine.append(_room(source, count, longest + _GROWTH))
                mine[layer] = _grown(mine[layer], before, count, longest)
                mine[layer][before:count, :, : other._longest] = source[:, :, : other._longest].index_select(0, place)
        self.lengths = lengths
        self._set_rows()

    def keep(self, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Drop the other rows, and return the old index of each remaining row: int64 [number of remaining rows]."""
        count = int(rows.sum())
        order = np.arange(count)
        holes, movers = np.flatnonzero(~rows[:count]), count + np.flatnonzero(rows[count:])
        order[holes] = movers
        if count == 0:
            self._keys, self._values = [], []
        elif len(holes):
            to, source = torch.from_numpy(holes).to(self._device), torch.from_numpy(movers).to(self._device)
            longest = int(self.lengths[movers].max())
            for store in (self._keys, self._values):
                for layer in store:
                    layer[to, :, :longest] = layer[source, :, :longest]
        self.lengths = self.lengths[order]
        self._set_rows()
        return order

    def begin_step(
        self, count: int = 1, blocks: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | dict[str, torch.Tensor]]:
        """Make room for `count` more tokens in each row, some of which may be blocks of `masks_of`.

        Returns:
            Positions of the new tokens [B, count], and what each may see: additive mask [B, 1, count, longest], by type
            of layer if the model has types.
        """
        self._longest += count
        for store in (self._keys, self._values):
            for layer, old in enumerate(store):
                store[layer] = _grown(old, len(self.lengths), len(self.lengths), self._longest)
        self._positions = self._position[:, None] + torch.arange(count, device=self._device)
        return self._positions, masks_of(self._windows, self._positions, self._longest, self._dtype, blocks)

    def end_step(self, counts: NDArray[np.int64] | None = None) -> None:
        """Advance every row by one token, or by a number each with padding after them."""
        if counts is None:
            self.lengths = self.lengths + 1
            self._position = self._position + 1
        else:
            self.lengths = self.lengths + counts
            self._set_rows()

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,  # noqa: ARG002 -- what other caches need
        **kwargs: object,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens of each row, and return all; the model's attention calls it."""
        count = len(self.lengths)
        if layer_idx == len(self._keys):  # no prompt had more than one token
            self._keys.append(_room(key_states, count, self._longest + _GROWTH))
            self._values.append(_room(value_states, count, self._longest + _GROWTH))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._row[:, None], :, self._positions] = key_states.transpose(1, 2)
        values[self._row[:, None], :, self._positions] = value_states.transpose(1, 2)
        return keys[:count, :, : self._longest], values[:count, :, : self._longest]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 -- all layers are alike
        """Return the number of tokens of the longest row."""
        return self._longest

    def _set_rows(self) -> None:
        self._longest = int(self.lengths.max(initial=0))
        self._position = torch.from_numpy(self.lengths).to(self._device, copy=True)
        self._row = torch.arange(len(self.lengths), device=self._device)


def _room(like: torch.Tensor, rows: int, positions: int) -> torch.Tensor:
    # Zeros and not uninitialised memory: a masked slot has weight 0, and 0 times NaN is NaN.
    return like.new_zeros(rows, like.shape[1], positions, like.shape[3])


def _grown(old: torch.Tensor, rows: int, wanted: int, longest: int) -> torch.Tensor:
    """Return `old`, or a copy of its first rows, with room for `wanted` rows of `longest` positions."""
    if wanted <= old.shape[0] and longest <= old.shape[2]:
        return old
    more = old.shape[0] if wanted <= old.shape[0] else max(wanted, int(_MORE_ROWS * old.shape[0]))
    positions = old.shape[2] if longest <= old.shape[2] else longest + _GROWTH
    new = _room(old, more, positions)
    new[:rows, :, : old.shape[2]] = old[:rows]
    return new
