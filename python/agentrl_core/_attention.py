"""Attention over a pack: every sequence attends to itself alone, and no mask is built.

The flat tokens of a pack go through the linear layers of a model without padding. Only the attention needs to know
where sequences start. On CUDA in half precision it is `torch.nn.attention.varlen`; elsewhere queries, keys and values
are padded sequence by sequence, in buckets of similar length, for `scaled_dot_product_attention(is_causal=True)`. A
padded key lies behind every real query of its row, so causality already hides it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import MissingDependencyError, UnsupportedError

NAME = "agentrl_sequence"
_REFUSED = ("softcap", "s_aux", "position_bias")  # arguments of attention variants that this one does not compute
_BUCKET_SHARE = 0.75  # a sequence shorter than this share of its bucket's longest opens a new bucket
_VARLEN_HEAD_LIMIT = 256


class SequenceLayout:
    """Where the sequences of a pack lie: made once, used by every layer.

    Args:
        cu_seqlens: `int32[S + 1]`, starts of the sequences in the flat tokens, then the total.
        max_seqlen: length of the longest.
    """

    def __init__(self, cu_seqlens: Tensor, max_seqlen: int) -> None:
        self.cu_seqlens = cu_seqlens
        self.max_seqlen = max_seqlen
        self.layers = 0  # how many attention layers have used it

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


@contextmanager
def sequence_attention(decoder: nn.Module) -> Iterator[None]:
    """Let `decoder`, a Hugging Face model, use this attention inside the block; afterwards its own is back.

    The choice is a field of the model's config, so the same model must not run elsewhere in another thread meanwhile.
    Gradient checkpointing recomputes layers in the backward pass, after the block: it gets the same attention again.
    """
    _register()
    config: Any = decoder.config
    with ExitStack() as stack:
        stack.enter_context(_implementation(config))
        for layer in decoder.modules():
            if getattr(layer, "gradient_checkpointing", False):
                stack.enter_context(_checkpointing(layer, config))
        yield


@contextmanager
def _implementation(config: Any) -> Iterator[None]:
    before = config._attn_implementation  # noqa: SLF001 - the library's own switch, in no public name
    config._attn_implementation = NAME  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation = before  # noqa: SLF001


@contextmanager
def _checkpointing(layer: nn.Module, config: Any) -> Iterator[None]:
    own: Any = getattr(layer, "_gradient_checkpointing_func", None)
    if own is None:
        yield
        return
    if getattr(own, "keywords", {}).get("use_reentrant"):
        raise UnsupportedError(
            "gradient checkpointing with use_reentrant=True recomputes without the pack's attention; call "
            'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})'
        )

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _implementation(config)

    layer._gradient_checkpointing_func = functools.partial(own, context_fn=contexts)  # type: ignore[assignment]  # noqa: SLF001
    try:
        yield
    finally:
        layer._gradient_checkpointing_func = own  # noqa: SLF001


@functools.cache
def _register() -> None:
    try:
        from transformers import AttentionInterface
    except ImportError as error:
        raise MissingDependencyError(
            "pack.run needs the package transformers to run a model; pip install 'agentrl_core[torch]'"
        ) from error
    AttentionInterface.register(NAME, _attend)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    sequence_layout: SequenceLayout | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """The function that transformers calls: `[1, heads, T, D]` in, `[1, T, heads, D]` out."""
    name = type(module).__name__
    if sequence_layout is None or attention_mask is not None:
        raise UnsupportedError(
            f"{name} does not hand the pack's sequences to its attention; this model cannot run packs"
        )
    if sliding_window is not None and sliding_window < sequence_layout.max_seqlen:
        raise UnsupportedError(
            f"{name} has sliding_window={sliding_window} but the pack's longest sequence has "
            f"{sequence_layout.max_seqlen} tokens; packs need full causal attention: use shorter sequences"
        )
    refused = [argument for argument in _REFUSED if others.get(argument) is not None]
    if refused or not getattr(module, "is_causal", True):
        raise UnsupportedError(f"{name} uses {refused[0] if refused else 'attention that is not causal'}; packs cannot")
    sequence_layout.layers += 1

    q, k, v = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))  # [T, heads, D]
    varlen = _varlen() if _fits_varlen(q, v, dropout) else None
    if varlen is not None:
        out = varlen(
            q.contiguous(),
            k.contiguous(),
            v.contiguous(),
            sequence_layout.cu_seqlens,
            sequence_layout.cu_seqlens,
            sequence_layout.max_seqlen,
            sequence_layout.max_seqlen,
            scale=scaling,
            window_size=(-1, 0),
            enable_gqa=q.shape[1] != k.shape[1],
        )
    else:
        out = _padded(q, k, v, sequence_layout, scaling, dropout)
    return out.unsqueeze(0), None


def _padded(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scaling: float | None, dropout: float) -> Tensor:
    shapes, rows, slots = layout.buckets
    outs = []
    begin = 0
    for count, length in shapes:
        members = rows[begin : begin + count * length]
        begin += count * length
        query, key, value = (
            states.index_select(0, members).view(count, length, *states.shape[1:]).transpose(1, 2)
            for states in (q, k, v)
        )
        out = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        outs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outs).index_select(0, slots)


def _fits_varlen(q: Tensor, v: Tensor, dropout: float) -> bool:
    return (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and dropout == 0.0
        and q.shape[-1] == v.shape[-1] <= _VARLEN_HEAD_LIMIT
        and q.shape[-1] % 8 == 0
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
