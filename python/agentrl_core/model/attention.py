"""Attention over the tokens of a pack: sequence after sequence, or a tree with each token once.

The flat tokens of a pack go through the linear layers of a model without padding. Only the attention depends on which
tokens precede which.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl_core.exceptions import UnsupportedError
from agentrl_core.model import flex_masks

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_BUCKET_SHARE = 0.75  # a sequence shorter than this share of its bucket's longest opens a new bucket
_VARLEN_HEAD_LIMIT = 256
_QUERY_BLOCK = 128  # largest number of rows of a tree that share one list of keys
_FLEX_BLOCK = 128


class Scoring(NamedTuple):
    """Attention options of one layer: scaling, dropout, window, soft cap, chunk, sinks; see `Attention.attend`."""

    scaling: float | None
    dropout: float
    window: int | None
    softcap: float | None
    chunk: int | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """True for plain causal attention: no window, soft cap, chunk or sinks."""
        return self.window is None and self.softcap is None and self.chunk is None and self.sinks is None


class Span(NamedTuple):
    """Window and chunk of a layer: of the tokens on its path, a token sees those within both; None: no limit."""

    window: int | None = None
    chunk: int | None = None


_ALL = Span()
_FAR = 2**30  # a window or chunk longer than any sequence, so that int32 positions do not overflow


class Attention(ABC):
    """Base class of the attention between the tokens of a pack, planned once and used by every layer."""

    def __init__(self) -> None:
        self.layers = 0  # number of attention layers that have used it in this forward pass

    @property
    @abstractmethod
    def longest(self) -> int:
        """Length of the longest path: the largest number of tokens up to and including one token."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float | None,
        dropout: float,
        window: int | None = None,
        softcap: float | None = None,
        chunk: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Compute causal attention, `[T, heads, E]`; keys and values may have fewer heads than queries (GQA).

        Args:
            query: `[T, heads, D]`.
            key: `[T, heads or fewer, D]`.
            value: `[T, heads of key, E]`; E is D in most models.
            scaling: factor of q k^T; None: 1 / sqrt(D).
            dropout: share of the probabilities to drop.
            window: a token sees itself and the window - 1 tokens before it; None: all before it.
            softcap: scores s become softcap tanh(s / softcap).
            chunk: a token sees only tokens whose position divided by `chunk` has the same integer part as its own.
            sinks: `[heads]`, an additional score per head that takes part in the softmax, with value 0.
        """
        scoring = Scoring(scaling, dropout, self.cut(window), softcap, self.cut(chunk), sinks)
        if sinks is not None:
            if softcap is not None:
                raise UnsupportedError(
                    f"the model's attention has both softcap={softcap} and sinks, which packs cannot compute; use "
                    "layout='padded'"
                )
            return self._with_sinks(query, key, value, scoring)
        return self._attend(query, key, value, scoring).contiguous()

    def _with_sinks(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Compute attention with one additional key per query, whose score is the sink and whose value is 0.

        Queries and keys get one more feature: sink / scaling in the query, 0 in the keys, and 1 in the added key, whose
        other features are 0.
        """
        scaling = query.shape[-1] ** -0.5 if scoring.scaling is None else scoring.scaling
        sinks = cast("Tensor", scoring.sinks).to(query.dtype)
        query = torch.cat([query, (sinks / scaling).expand(len(query), -1)[..., None]], dim=-1)
        key = nn.functional.pad(key, (0, 1))
        return self._attend(query, key, value, scoring._replace(scaling=scaling)).contiguous()

    @abstractmethod
    def _attend(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Compute the attention for options that `attend` has checked; windows and chunks without effect are None."""

    def cut(self, window: int | None) -> int | None:
        """Return a window or chunk size, or None if it is at least the longest path, so that it hides nothing."""
        return window if window is not None and window < self.longest else None


class SequenceAttention(Attention):
    """Attention of sequences one after the other: each token attends to itself and earlier tokens of its sequence.

    On CUDA in half precision it is `torch.nn.attention.varlen`; elsewhere queries, keys and values are padded sequence
    by sequence, in buckets of similar length, for `scaled_dot_product_attention(is_causal=True)`. A padded key comes
    after every real query of its row, so causality already hides it. With a window or a soft cap, the sequences are
    computed as trees without forks.

    Args:
        cu_seqlens: `int32[S + 1]`, starts of the sequences in the flat tokens, then the total.
        max_seqlen: length of the longest.
        share: a sequence shorter than this share of its bucket's longest opens a new bucket; None: 0.75.
    """

    def __init__(self, cu_seqlens: Tensor, max_seqlen: int, *, share: float | None = None) -> None:
        super().__init__()
        self._share = _BUCKET_SHARE if share is None else share
        self.cu_seqlens = cu_seqlens
        self.max_seqlen = max_seqlen

    @property
    def longest(self) -> int:
        """Length of the longest sequence."""
        return self.max_seqlen

    @functools.cached_property
    def buckets(self) -> tuple[list[tuple[int, int]], Tensor, Tensor]:
        """Shapes (sequences, length) of the buckets, the flat row of each slot, and the slot of each flat row."""
        starts = self.cu_seqlens.to("cpu", torch.int64)
        lengths = starts.diff()
        order = lengths.argsort(descending=True, stable=True)
        shapes: list[tuple[int, int]] = []
        rows, slots = [], torch.empty(int(starts[-1]), dtype=torch.int64)
        begin = used = 0
        while begin < len(order):
            longest = int(lengths[order[begin]])
            members = order[begin:]
            members = members[lengths[members] >= self._share * longest]
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

    @functools.cached_property
    def chains(self) -> TreeAttention:
        """The sequences as trees without forks, for windows and soft caps."""
        starts = self.cu_seqlens.to(torch.int64)
        lengths = starts.diff()
        ends = starts[1:].repeat_interleave(lengths)
        begins = starts[:-1].repeat_interleave(lengths)
        return TreeAttention(ends.to(torch.int32), torch.arange(len(ends), device=ends.device) - begins)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Compute the attention of each sequence by itself."""
        scaling, dropout, window = scoring.scaling, scoring.dropout, scoring.window
        is_plain = scoring._replace(window=None).is_plain
        varlen = _varlen() if is_plain and _fits_varlen(query, value, dropout) else None
        if varlen is None and scoring.is_plain:
            return self._padded(query, key, value, scaling, dropout)
        if varlen is None:
            return self.chains._attend(query, key, value, scoring)  # noqa: SLF001 - the same sequences
        out: Tensor = varlen(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            scale=scaling,
            window_size=(-1 if window is None else window - 1, 0),  # tokens before a query and after it
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


class TreeAttention(Attention):
    """Attention of trees in depth-first order, each token once: q attends to k if `k <= q and q < subtree_end[k]`.

    These keys are the tokens on the path from the root of q's tree to q; a window keeps those with
    `position_ids[q] - position_ids[k] < window`. On CUDA it is FlexAttention with a block mask; elsewhere
    `scaled_dot_product_attention` computes blocks of rows, each with a boolean mask over the keys on the paths of its
    rows. So no mask covers a whole tree, or several trees.

    Args:
        subtree_end: `int32[T]`, the row after the last descendant of each token.
        position_ids: `int64[T]`, the number of tokens before each token on its path.
    """

    def __init__(self, subtree_end: Tensor, position_ids: Tensor) -> None:
        super().__init__()
        self.subtree_end = subtree_end
        self.position_ids = position_ids
        self._blocks: dict[Span, list[tuple[slice, slice | Tensor, Tensor]]] = {}
        self._block_masks: dict[Span, BlockMask] = {}

    @functools.cached_property
    def longest(self) -> int:
        """Length of the longest path."""
        return int(self.position_ids.max()) + 1

    def blocks(self, window: int | None = None, chunk: int | None = None) -> list[tuple[slice, slice | Tensor, Tensor]]:
        """Return the rows, the key rows and the mask `[rows, keys]` of each block, cached by window and chunk."""
        span = Span(window, chunk)
        if span not in self._blocks:
            self._blocks[span] = self._made_blocks(span)
        return self._blocks[span]

    def _made_blocks(self, span: Span) -> list[tuple[slice, slice | Tensor, Tensor]]:
        ends, positions = (column.to("cpu", torch.int64) for column in (self.subtree_end, self.position_ids))
        device = self.subtree_end.device
        blocks: list[tuple[slice, slice | Tensor, Tensor]] = []
        for begin, end in itertools.pairwise(_block_bounds(ends)):
            rows = torch.arange(begin, end)
            keys = torch.cat([(ends[:begin] > begin).nonzero().squeeze(1), rows])
            mask = (keys <= rows[:, None]) & (rows[:, None] < ends[keys])
            if span.window is not None:
                mask &= positions[rows, None] - positions[keys] < span.window
            if span.chunk is not None:
                mask &= positions[rows, None] // span.chunk == positions[keys] // span.chunk
            if span != _ALL:
                near = mask.any(0)
                keys, mask = keys[near], mask[:, near]
            first, last = int(keys[0]), int(keys[-1])
            in_one_piece = last - first + 1 == len(keys)  # a view; an index would copy, for autograd too
            place: slice | Tensor = slice(first, last + 1) if in_one_piece else keys.to(device)
            blocks.append((slice(begin, end), place, mask.to(device)))
        return blocks

    def block_mask(self, window: int | None = None, chunk: int | None = None) -> BlockMask:
        """Return the block mask for FlexAttention, from the extremes of each block, without a mask `[T, T]`."""
        span = Span(window, chunk)
        if span not in self._block_masks:
            self._block_masks[span] = self._made_block_mask(span)
        return self._block_masks[span]

    def _made_block_mask(self, span: Span) -> BlockMask:
        from torch.nn.attention.flex_attention import BlockMask

        total, device = len(self.subtree_end), self.subtree_end.device
        count = -(-total // _FLEX_BLOCK)
        # Padding rows after the last one have no descendants: no query sees them, and no block with one is full.
        ends = nn.functional.pad(self.subtree_end, (0, count * _FLEX_BLOCK - total))
        per_block = ends.view(count, _FLEX_BLOCK)
        block = torch.arange(count, device=device)
        begin, stop = block * _FLEX_BLOCK, (block * _FLEX_BLOCK + _FLEX_BLOCK).clamp(max=total)
        visible = (block <= block[:, None]) & (per_block.amax(1) > begin[:, None])
        full = (block < block[:, None]) & (per_block.amin(1) >= stop[:, None])

        mask = flex_masks.on_path(ends)
        if span != _ALL:
            window, chunk = (_FAR if limit is None else limit for limit in span)
            rows = torch.arange(len(ends), device=device).clamp(max=total - 1)
            positions = self.position_ids[rows].to(torch.int32)
            least, most = (bound[:, None] for bound in positions.view(count, _FLEX_BLOCK).aminmax(dim=1))
            first, last = least // chunk, most // chunk
            visible &= (least - most.T < window) & (first <= last.T) & (last >= first.T)
            full &= (most - least.T < window) & (first == last.T) & (last == first.T) & (first == last)
            mask = flex_masks.in_span(mask, positions, window, chunk)

        def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
            order = chosen.to(torch.int8).argsort(dim=1, descending=True, stable=True)
            return chosen.sum(1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]

        return BlockMask.from_kv_blocks(
            *listed(visible & ~full), *listed(full), BLOCK_SIZE=_FLEX_BLOCK, mask_mod=mask, seq_lengths=(total, total)
        )

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Compute the attention of each token to the tokens on its path."""
        scaling, dropout, softcap = scoring.scaling, scoring.dropout, scoring.softcap
        span, has_sinks = Span(scoring.window, scoring.chunk), scoring.sinks is not None
        q, k, v = (states.transpose(0, 1)[None] for states in (query, key, value))
        flex = _flex() if not has_sinks and _fits_flex(query, value, dropout) else None
        if flex is not None:
            out: Tensor = flex(
                q,
                k,
                v,
                score_mod=None if softcap is None else flex_masks.soft_cap(softcap, query.device),
                block_mask=self.block_mask(*span),
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        else:
            outs = []
            for rows, keys, mask in self.blocks(*span):
                part_k, part_v = (
                    states[:, :, keys] if isinstance(keys, slice) else states.index_select(2, keys) for states in (k, v)
                )
                if has_sinks:
                    part_k, part_v = (nn.functional.pad(states, (0, 0, 0, 1)) for states in (part_k, part_v))
                    part_k[:, :, -1, -1] = 1.0
                    mask = nn.functional.pad(mask, (0, 1), value=True)  # noqa: PLW2901 - the mask of all keys
                block = (q[:, :, rows], part_k, part_v, mask, dropout, scaling)
                outs.append(_masked(*block) if softcap is None else _capped(*block, softcap))
            out = torch.cat(outs, dim=2)
        return out[0].transpose(0, 1)


def _block_bounds(ends: Tensor) -> list[int]:
    """Return the first row of each block, then the number of rows; a block ends after a leaf if it has one.

    Rows of two branches have few keys in common.
    """
    after_leaves = (ends == torch.arange(1, len(ends) + 1)).nonzero().squeeze(1) + 1
    bounds = [0]
    while bounds[-1] < len(ends):
        most = bounds[-1] + _QUERY_BLOCK
        leaves = int(torch.searchsorted(after_leaves, most, right=True))
        last = int(after_leaves[leaves - 1]) if leaves else 0
        bounds.append(last if last > bounds[-1] else most)
    return bounds


def _masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: float, scaling: float | None) -> Tensor:
    return nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _capped(*block: Any) -> Tensor:
    """Compute attention with a soft cap; the backward pass recomputes scores, so memory is that of one block."""
    out: Tensor = checkpoint(_capped_scores, *block, use_reentrant=False)
    return out


def _capped_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    dropout: float,
    scaling: float | None,
    softcap: float,
) -> Tensor:
    of_key = query.unflatten(1, (key.shape[1], -1))  # query heads that share one key head
    scores = of_key @ key.unsqueeze(2).mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = softcap * (scores / softcap).tanh()
    wide = torch.promote_types(query.dtype, torch.float32)
    probability = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1, dtype=wide).to(query.dtype)
    return (nn.functional.dropout(probability, dropout) @ value.unsqueeze(2)).flatten(1, 2)


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
    """Return `varlen_attn`, or None if this version of torch lacks it or has another signature."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    required = {"scale", "window_size", "enable_gqa"}
    function: Callable[..., Any] = varlen_attn
    return function if required <= set(inspect.signature(function).parameters) else None


@functools.cache
def _flex() -> Callable[..., Any] | None:
    """Return FlexAttention, compiled for packs of any length; None if this version of torch lacks it."""
    try:
        from torch.nn.attention.flex_attention import flex_attention
    except ImportError:
        return None
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled
