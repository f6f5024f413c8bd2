"""Forward passes with cached keys and values, of rows of different lengths that come and go."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AttentionInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentrl_core.engine.attention_windows import ALL_LAYERS, Windows
from agentrl_core.model.matmul import fast_from, fast_linear_layers
from agentrl_core.model.routers import RouteTrace

# The attention of `_grouped_attention`, in the registry of transformers.
_GROUPED = "agentrl_grouped"
# The cache grows by this many positions at a time.
_GROWTH = 32
# And by this share of its rows, so that rows that come one by one do not copy it each time.
_MORE_ROWS = 1.5


def cache_argument(model: nn.Module) -> str:
    """Return the name by which a model's forward pass takes its cache: transformers 5.24 deprecates `past_key_values`.

    Args:
        model: a causal model of Hugging Face, or a wrapper of one, such as PEFT's.
    """
    inner = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), model)
    return _cache_argument(type(inner).forward)


@functools.cache
def _cache_argument(forward: Callable[..., object]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


class KVCache(Cache):
    """Keys and values of every layer: [rows, heads, positions, width], with room for more of both.

    Row b has tokens at positions 0 to lengths[b] - 1. In a step every row writes after its last position and attends,
    through the mask, to its own tokens. The last row moves into the place of a removed one.

    Args:
        lengths: tokens of each row, int64 [B].
        model: a causal model of Hugging Face.
        windows: of its layers.
        routes: traces the experts of each token, which are one more layer of the cache; None: they are not kept.
    """

    def __init__(
        self, lengths: NDArray[np.int64], model: Any, windows: Windows, routes: RouteTrace | None = None
    ) -> None:
        super().__init__(layers=[])
        self._model = model
        self._argument = cache_argument(model)
        self._fast_from = fast_from(model)
        self._windows = windows
        self._routes = routes
        self.lengths = lengths
        self._device = model.device
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

    def keys_of(self, layer: int, index: int) -> torch.Tensor:
        """Return the keys of a layer of a row, [heads, its tokens, width]."""
        return self._keys[layer][index, :, : int(self.lengths[index])]

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
        self._grow(before, count, longest)
        for mine, theirs in ((self._keys, other._keys), (self._values, other._values)):
            for layer, source in enumerate(theirs):
                if layer == len(mine):
                    mine.append(_room(source, count, longest + _GROWTH))
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

    def forward(
        self,
        run: Any,
        ids: torch.Tensor,
        *,
        counts: NDArray[np.int64] | None = None,
        shift: NDArray[np.int64],
        blocks: torch.Tensor | None = None,
        **shown: Any,
    ) -> Any:
        """Run the model over the next tokens of each row, keep their keys and values, and return its outputs.

        Args:
            run: the model, or its body.
            ids: the tokens, int64 [B, count], with padding on the right.
            counts: number of tokens of each row; None: all of them.
            shift: number by which the images of each row move the positions of its next tokens, int64 [B].
            blocks: int64 [B, count]: tokens of a block see each other inside their window; 0: in none.
            shown: arguments of the model for images.
        """
        count = ids.shape[1]
        self._longest += count
        self._grow(len(self.lengths), len(self.lengths), self._longest)
        self._positions = positions = self._position[:, None] + torch.arange(count, device=self._device)
        mask = _masks(self._windows, positions, self._longest, self._model.dtype, blocks)
        if shift.any():
            positions = positions + torch.from_numpy(shift).to(self._device)[:, None]
        given: dict[str, Any] = {"position_ids": positions, self._argument: self, **shown}
        traced: AbstractContextManager[list[torch.Tensor]] = nullcontext([])
        if self._routes is not None:
            traced = self._routes.forward()
        fast: AbstractContextManager[object] = nullcontext()
        if ids.numel() >= self._fast_from:
            fast = fast_linear_layers(self._model, ids.numel())
        with _grouped_attention(self._model), fast, traced as experts:
            outputs = run(ids, attention_mask=mask, use_cache=True, **given)
        if self._routes is not None:
            layers = self._model.config.get_text_config().num_hidden_layers
            self.update(*self._routes.layer(experts, len(self.lengths)), layers)
        if counts is None:
            self.lengths = self.lengths + count
            self._position = self._position + count
        else:
            self.lengths = self.lengths + counts
            self._set_rows()
        return outputs

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
        keys[self._row, :, self._positions] = key_states.transpose(1, 2)
        values[self._row, :, self._positions] = value_states.transpose(1, 2)
        return keys[:count, :, : self._longest], values[:count, :, : self._longest]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 -- all layers are alike
        """Return the number of tokens of the longest row."""
        return self._longest

    def _grow(self, filled: int, rows: int, positions: int) -> None:
        """Make room for `rows` rows and `positions` positions; the first `filled` rows are kept."""
        if not self._keys:
            return
        room = self._keys[0].shape  # that of all layers
        if rows <= room[0] and positions <= room[2]:
            return
        more = room[0] if rows <= room[0] else max(rows, int(_MORE_ROWS * room[0]))
        longer = room[2] if positions <= room[2] else positions + _GROWTH
        for store in (self._keys, self._values):
            for layer, old in enumerate(store):
                store[layer] = _room(old, more, longer)
                store[layer][:filled, :, : room[2]] = old[:filled]

    def _set_rows(self) -> None:
        self._longest = int(self.lengths.max(initial=0))
        self._position = torch.from_numpy(self.lengths).to(self._device, copy=True)
        self._row = torch.arange(len(self.lengths), device=self._device)[:, None]


def _room(like: torch.Tensor, rows: int, positions: int) -> torch.Tensor:
    # Zeros and not uninitialised memory: a masked slot has weight 0, and 0 times NaN is NaN.
    return like.new_zeros(rows, like.shape[1], positions, like.shape[3])


def _masks(
    windows: Windows, positions: torch.Tensor, count: int, dtype: torch.dtype, blocks: torch.Tensor | None
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the additive mask of new tokens over `count` slots, [B, 1, new tokens, count]; by type if there are types.

    Args:
        windows: of the model.
        positions: slots of the new tokens, [B, new tokens].
        count: of slots.
        dtype: of the mask.
        blocks: int64 [B, new tokens]: tokens of a block see each other inside their window; 0: in none.
    """
    slots = torch.arange(count, device=positions.device)
    later = slots > positions[:, :, None]
    if blocks is not None:
        of_slot = blocks.new_zeros(len(blocks), count).scatter(1, positions, blocks)
        later &= (blocks[:, :, None] != of_slot[:, None]) | (blocks == 0)[:, :, None]
    masks: dict[str, torch.Tensor] = {}
    for kind, window in windows.items():
        unseen = later if window is None else later | (slots <= positions[:, :, None] - window)
        mask = torch.zeros(unseen.shape, dtype=dtype, device=positions.device)
        masks[kind] = mask.masked_fill_(unseen, torch.finfo(dtype).min)[:, None]
    return masks.get(ALL_LAYERS, masks)


@contextmanager
def _grouped_attention(model: nn.Module) -> Iterator[None]:
    """Let a Hugging Face model that attends by sdpa use this attention inside the block.

    With a mask, transformers repeats keys and values for each query head before it calls sdpa: in a step of one token a
    row these copies take longer than the attention. Here the query heads of a key head are more queries of it:

        q [B, heads, T, D] -> [B, KV heads, heads / KV heads * T, D];  o = softmax(q k^T s + mask) v

    The choice is a field of the model's config, so the model must not run elsewhere meanwhile.
    """
    whole: Any = model.config
    config = whole.get_text_config()
    if config._attn_implementation != "sdpa":  # noqa: SLF001 - the library's own switch, in no public name
        yield
        return
    config._attn_implementation = _GROUPED  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"  # noqa: SLF001


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers calls it: `[B, heads, T, D]` in, `[B, T, heads, D]` out."""
    batch, heads, count, width = query.shape
    groups = heads // key.shape[1]
    if groups == 1 or attention_mask is None or others.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    grouped = query.reshape(batch, key.shape[1], groups * count, width)
    mask = attention_mask.repeat(1, 1, groups, 1) if count > 1 else attention_mask
    out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, count, value.shape[3]).transpose(1, 2).contiguous(), None


AttentionInterface.register(_GROUPED, _attend)  # it makes no masks: `forward` gives whole ones
