"""Replace the attention of a Hugging Face model by that of a pack, through the library's attention interface.

All parts of a model except the attention work on flat tokens unchanged. transformers allows a custom function as the
attention of all its models. Here it is the attention of the pack (`agentrl_core.model.attention`), which raises an
error for variants that it cannot compute.
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
    """Use the attention of packs in a Hugging Face model inside a `with` block, and restore its own afterwards.

    The choice is a field of the model's config, so the same model must not run in another thread meanwhile. Gradient
    checkpointing recomputes layers in the backward pass, after the block, with the same attention.

    Raises:
        UnsupportedError: the attention of the model cannot be replaced.
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
    checkpoint: Any = getattr(layer, "_gradient_checkpointing_func", None)
    if checkpoint is None:
        yield
        return
    if getattr(checkpoint, "keywords", {}).get("use_reentrant"):
        raise UnsupportedError(
            "gradient checkpointing with use_reentrant=True recomputes without the pack's attention; call "
            'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})'
        )

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _implementation(config)

    layer._gradient_checkpointing_func = functools.partial(checkpoint, context_fn=contexts)  # type: ignore[assignment]  # noqa: SLF001
    try:
        yield
    finally:
        layer._gradient_checkpointing_func = checkpoint  # noqa: SLF001


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
    """Compute the attention of a layer; transformers calls it with `[1, heads, T, D]` and gets `[1, T, heads, D]`."""
    name = type(module).__name__
    if attention_of_pack is None or attention_mask is not None:
        problem = "does not get the pack's attention from its decoder"
        if attention_of_pack is not None:
            problem = "gets an attention mask besides the pack's attention"
        raise UnsupportedError(f"{name} {problem}, so only padded packs can run; use layout='padded'")
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
    """Return the layer type of an attention module, if its config has layer types."""
    kinds = getattr(getattr(module, "config", None), "layer_types", None)
    kind: str | None = None if kinds is None else kinds[module.layer_idx]
    if kind not in (None, "full_attention", "sliding_attention", "chunked_attention"):
        raise UnsupportedError(
            f"{type(module).__name__} has the layer type {kind!r}, which tree and sequence cannot run; use "
            "layout='padded'"
        )
    return kind


def _chunk(module: nn.Module, kind: str | None, attention: Attention) -> int | None:
    """Return the chunk size of a layer with chunked attention; None for other layers."""
    config: Any = getattr(module, "config", None)
    chunk: int | None = getattr(config, "attention_chunk_size", None)
    if kind is None and chunk and chunk < attention.longest:
        raise UnsupportedError(
            f"{type(module).__name__}: its config has attention_chunk_size={chunk} but no layer_types, so the layers "
            f"with chunks are unknown, and a sequence of the pack has {attention.longest} tokens; use layout='padded', "
            f"or sequences of at most {chunk} tokens"
        )
    if kind == "chunked_attention" and not chunk:
        raise UnsupportedError(
            f"{type(module).__name__} is a layer of chunked attention, but its config has no attention_chunk_size; "
            "use layout='padded'"
        )
    return chunk if kind == "chunked_attention" else None


def _window(module: nn.Module, kind: str | None, handed: int | None, attention: Attention) -> int | None:
    """Return the sliding window of a layer: passed by the layer, or from the config if its layer type has a window."""
    config: Any = getattr(module, "config", None)
    if handed != _NOT_HANDED:
        return handed
    window: int | None = getattr(config, "sliding_window", None)
    if kind is None and window and window < attention.longest:
        raise UnsupportedError(
            f"{type(module).__name__}: its config has sliding_window={window} but no layer_types, so the layers with "
            f"the window are unknown, and a sequence of the pack has {attention.longest} tokens; use layout='padded', "
            f"or sequences of at most {window} tokens"
        )
    return window if kind == "sliding_attention" else None
