"""The attention of a pack in a Hugging Face model: the library's own switch is turned to the pack's own.

Everything but the attention of a model works on flat tokens as it is. transformers lets a function of one's own stand
for the attention of all its models; ours is that of the pack (`agentrl_core.model.attention`), and refuses what that
does not compute.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from agentrl_core.exceptions import UnsupportedError
from agentrl_core.model.attention import Attention

NAME = "agentrl_pack"
_REFUSED = ("position_bias", "indices", "topk_indices")  # arguments of attention variants that no pack computes
_NOT_HANDED = 0


@contextmanager
def pack_attention(decoder: nn.Module) -> Iterator[None]:
    """Let `decoder`, a Hugging Face model, use this attention inside the block; afterwards its own is back.

    The choice is a field of the model's config, so the same model must not run elsewhere in another thread meanwhile.
    Gradient checkpointing recomputes layers in the backward pass, after the block: it gets the same attention again.

    Raises:
        UnsupportedError: the model does not let another attention stand for its own.
    """
    _register()
    if getattr(decoder, "_supports_attention_backend", True) is False:
        raise UnsupportedError(
            f"{type(decoder).__name__} computes its attention by itself, not through transformers' AttentionInterface; "
            "the layouts tree and sequence need that: use layout='padded'"
        )
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
    from transformers import AttentionInterface

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
    sliding_window: int | None = _NOT_HANDED,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    attention_of_pack: Attention | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """The function that transformers calls: `[1, heads, T, D]` in, `[1, T, heads, D]` out."""
    name = type(module).__name__
    if attention_of_pack is None or attention_mask is not None:
        raise UnsupportedError(f"{name} does not pass the pack's attention to its layers; use layout='padded'")
    refused = [argument for argument in _REFUSED if others.get(argument) is not None]
    if refused or not getattr(module, "is_causal", True):
        raise UnsupportedError(
            f"{name} uses {refused[0] if refused else 'attention that is not causal'}, which the layouts tree and "
            "sequence cannot compute; use layout='padded'"
        )
    kind = _kind(module)
    window = _window(module, kind, sliding_window, attention_of_pack)
    chunk = _chunk(module, kind, attention_of_pack)
    attention_of_pack.layers += 1
    flat = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
    out = attention_of_pack.attend(
        *flat, scaling=scaling, dropout=dropout, window=window, softcap=softcap, chunk=chunk, sinks=s_aux
    )
    return out.unsqueeze(0), None


def _kind(module: nn.Module) -> str | None:
    """The layer type of an attention module in its config, if the config has layer types."""
    kinds = getattr(getattr(module, "config", None), "layer_types", None)
    kind: str | None = None if kinds is None else kinds[module.layer_idx]
    if kind not in (None, "full_attention", "sliding_attention", "chunked_attention"):
        raise UnsupportedError(
            f"{type(module).__name__} has the layer type {kind!r}, which tree and sequence cannot run; use "
            "layout='padded'"
        )
    return kind


def _chunk(module: nn.Module, kind: str | None, attention: Attention) -> int | None:
    """The chunk of a layer, which its mask would have."""
    config: Any = getattr(module, "config", None)
    chunk: int | None = getattr(config, "attention_chunk_size", None)
    if kind is None and chunk and chunk < attention.longest:
        raise UnsupportedError(
            f"{type(module).__name__} has attention_chunk_size={chunk}, but no layer_types in its config, which name "
            f"the layers with chunks, and the pack's longest sequence has {attention.longest} tokens; use "
            "layout='padded'"
        )
    if kind == "chunked_attention" and not chunk:
        raise UnsupportedError(
            f"{type(module).__name__} is a layer of chunked attention, but its config has no attention_chunk_size; "
            "use layout='padded'"
        )
    return chunk if kind == "chunked_attention" else None


def _window(module: nn.Module, kind: str | None, handed: int | None, attention: Attention) -> int | None:
    """The window of a layer: it says so itself, or its kind says that it is the config's, which its mask would have."""
    config: Any = getattr(module, "config", None)
    if handed != _NOT_HANDED:
        return handed
    window: int | None = getattr(config, "sliding_window", None)
    if kind is None and window and window < attention.longest:
        raise UnsupportedError(
            f"{type(module).__name__} has sliding_window={window}, but no layer_types in its config, which name the "
            f"layers with the window, and the pack's longest sequence has {attention.longest} tokens; use "
            "layout='padded' or shorter sequences"
        )
    return window if kind == "sliding_attention" else None
