"""How the tokens of a pack lie, and attention over them: sequence after sequence, or a tree with each token once.

The flat tokens of a pack go through the linear layers of a model without padding. Only the attention needs to know
which tokens are before which.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_BUCKET_SHARE = 0.75  # a sequence shorter than this share of its bucket's longest opens a new bucket
_VARLEN_HEAD_LIMIT = 256
_QUERY_BLOCK = 256  # rows of a tree that look for their keys together
_FLEX_BLOCK = 128


class Layout(ABC):
    """Where the tokens of a pack lie: made once, used by every layer."""

    def __init__(self) -> None:
        self.layers = 0  # how many attention layers have used it in this forward pass

    @property
    @abstractmethod
    def longest(self) -> int:
        """Most tokens that one token has before it, itself included."""

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, dropout: float) -> Tensor:
        """Causal attention: `[T, heads, D]` in and out; keys and values may have fewer heads, each for several."""


class SequenceLayout(Layout):
    """Sequences one after the other: every sequence attends to itself alone, and no mask is built.

    On CUDA in half precision it is `torch.nn.attention.varlen`; elsewhere queries, keys and values are padded sequence
    by sequence, in buckets of similar length, for `scaled_dot_product_attention(is_causal=True)`. A padded key lies
    behind every real query of its row, so causality already hides it.

    Args:
        cu_seqlens: `int32[S + 1]`, starts of the sequences in the flat tokens, then the total.
        max_seqlen: length of the longest.
    """

    def __init__(self, cu_seqlens: Tensor, max_seqlen: int) -> None:
        super().__init__()
        self.cu_seqlens = cu_seqlens
        self.max_seqlen = max_seqlen

    @property
    def longest(self) -> int:
        """Length of the longest sequence."""
        return self.max_seqlen

    @functools.cached_property
    def buckets(self) -> tuple[list[tuple[int, int]], Tensor, Tensor]:
        """Shapes (sequences, length) of the buckets, the flat row of each padded slot, the slot of each flat row."""
        starts = self.cu_seqlens.to("cpu", torch.int64)
        lengths = starts.diff()
        order = lengths.argsort(descending=True, stable=True)
        shapes: list[tuple[int, int]] = []
        rows, slots = [], torch.empty(int(starts[-1]), dtype=torch.int64)
        begin = used = 0
        while begin < len(order):
            longest = int(lengths[order[begin]])
            members = order[begin:]
            members = members[lengths[members] >= _BUCKET_SHARE * longest]
            begin += len(members)
            position = torch.arange(longest)
            # Padded slots repeat the last token of their sequence: any finite row will do.
            flat = starts[members, None] + position.minimum(lengths[members, None] - 1)
            real = position < lengths[members, None]
            slots[flat[real]] = used + real.flatten().nonzero().squeeze(1)
            rows.append(flat.flatten())
            shapes.append((len(members), longest))
            used += flat.numel()
        device = self.cu_seqlens.device
        return shapes, torch.cat(rows).to(device), slots.to(device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, dropout: float) -> Tensor:
        """Attention of each sequence by itself."""
        varlen = _varlen() if _fits_varlen(query, value, dropout) else None
        if varlen is None:
            return self._padded(query, key, value, scaling, dropout)
        out: Tensor = varlen(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            scale=scaling,
            window_size=(-1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out

    def _padded(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, dropout: float) -> Tensor:
        shapes, rows, slots = self.buckets
        outs = []
        begin = 0
        for count, length in shapes:
            members = rows[begin : begin + count * length]
            begin += count * length
            q, k, v = (
                states.index_select(0, members).view(count, length, *states.shape[1:]).transpose(1, 2)
                for states in (query, key, value)
            )
            out = nn.functional.scaled_dot_product_attention(
                q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
            )
            outs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outs).index_select(0, slots)


class TreeLayout(Layout):
    """Trees in depth-first order, each token once: q attends to k where `k <= q and q < subtree_end[k]`.

    Those are the tokens on the path from the root of q's tree to q. On CUDA it is FlexAttention with a mask of blocks;
    elsewhere blocks of rows, each with the keys that any of them has on its path, go through
    `scaled_dot_product_attention` with a boolean mask, so that no mask covers a whole tree, nor two of them.

    Args:
        subtree_end: `int32[T]`, the row behind the last descendant of each token.
        position_ids: `int64[T]`, how many tokens are before each on its path.
    """

    def __init__(self, subtree_end: Tensor, position_ids: Tensor) -> None:
        super().__init__()
        self.subtree_end = subtree_end
        self.position_ids = position_ids

    @functools.cached_property
    def longest(self) -> int:
        """Length of the longest path."""
        return int(self.position_ids.max()) + 1

    @functools.cached_property
    def blocks(self) -> list[tuple[slice, slice | Tensor, Tensor]]:
        """Of each block its rows, the rows of its keys, and its mask `[rows, keys]`."""
        ends, device = self.subtree_end.to("cpu", torch.int64), self.subtree_end.device
        found: list[tuple[slice, slice | Tensor, Tensor]] = []
        for begin in range(0, len(ends), _QUERY_BLOCK):
            rows = torch.arange(begin, min(begin + _QUERY_BLOCK, len(ends)))
            keys = torch.cat([(ends[:begin] > begin).nonzero().squeeze(1), rows])
            mask = (keys <= rows[:, None]) & (rows[:, None] < ends[keys])
            first, last = int(keys[0]), int(keys[-1])
            in_one_piece = last - first + 1 == len(keys)  # then a view will do, where autograd would keep a copy
            place: slice | Tensor = slice(first, last + 1) if in_one_piece else keys.to(device)
            found.append((slice(begin, begin + len(rows)), place, mask.to(device)))
        return found

    @functools.cached_property
    def block_mask(self) -> BlockMask:
        """The same mask for FlexAttention, from the smallest and largest end of each block: no `[T, T]` is made."""
        from torch.nn.attention.flex_attention import BlockMask

        total, device = len(self.subtree_end), self.subtree_end.device
        count = -(-total // _FLEX_BLOCK)
        # Rows behind the last have no descendants, so that no query sees them and no block with one is full.
        ends = nn.functional.pad(self.subtree_end, (0, count * _FLEX_BLOCK - total))
        per_block = ends.view(count, _FLEX_BLOCK)
        block = torch.arange(count, device=device)
        begin, behind = block * _FLEX_BLOCK, (block * _FLEX_BLOCK + _FLEX_BLOCK).clamp(max=total)
        seen = (block <= block[:, None]) & (per_block.amax(1) > begin[:, None])
        full = (block < block[:, None]) & (per_block.amin(1) >= behind[:, None])

        def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
            order = chosen.to(torch.int8).argsort(dim=1, descending=True, stable=True)
            return chosen.sum(1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]

        def mask(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[key])

        return BlockMask.from_kv_blocks(
            *listed(seen & ~full), *listed(full), BLOCK_SIZE=_FLEX_BLOCK, mask_mod=mask, seq_lengths=(total, total)
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, dropout: float) -> Tensor:
        """Attention of each token to its path."""
        grouped = query.shape[1] != key.shape[1]
        q, k, v = (states.transpose(0, 1)[None] for states in (query, key, value))
        flex = _flex() if _fits_flex(query, value, dropout) else None
        if flex is not None:
            out: Tensor = flex(q, k, v, block_mask=self.block_mask, scale=scaling, enable_gqa=grouped)
        else:
            outs = []
            for rows, keys, mask in self.blocks:
                part_k, part_v = (
                    states[:, :, keys] if isinstance(keys, slice) else states.index_select(2, keys) for states in (k, v)
                )
                outs.append(
                    nn.functional.scaled_dot_product_attention(
                        q[:, :, rows],
                        part_k,
                        part_v,
                        attn_mask=mask,
                        dropout_p=dropout,
                        scale=scaling,
                        enable_gqa=grouped,
                    )
                )
            out = torch.cat(outs, dim=2)
        return out[0].transpose(0, 1)


def _fits_varlen(query: Tensor, value: Tensor, dropout: float) -> bool:
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and dropout == 0.0
        and query.shape[-1] == value.shape[-1] <= _VARLEN_HEAD_LIMIT
        and query.shape[-1] % 8 == 0
    )


def _fits_flex(query: Tensor, value: Tensor, dropout: float) -> bool:
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and dropout == 0.0
        and query.shape[-1] == value.shape[-1] >= 16
    )


@functools.cache
def _varlen() -> Callable[..., Any] | None:
    """`varlen_attn` where this torch has it in the form used here."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    wanted = {"scale", "window_size", "enable_gqa"}
    found: Callable[..., Any] = varlen_attn
    return found if wanted <= set(inspect.signature(found).parameters) else None


@functools.cache
def _flex() -> Callable[..., Any] | None:
    """FlexAttention, compiled for packs of any length, where this torch has it."""
    try:
        from torch.nn.attention.flex_attention import flex_attention
    except ImportError:
        return None
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled
