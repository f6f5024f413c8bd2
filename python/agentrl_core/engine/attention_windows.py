"""The attention windows of a model's layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl_core.exceptions import UnsupportedError

ALL_LAYERS = ""
"""The layer type for models that use one mask for all layers."""
Windows = Mapping[str, int | None]
"""By layer type, how many last tokens a token attends to, including itself; None: all."""
_IGNORE_THEIR_WINDOW = ("moshi",)  # types that attend through their window in flash attention only


def windows_of(model: Any) -> Windows:
    """Return the attention windows of a causal Hugging Face model, by layer type.

    Raises:
        UnsupportedError: a layer has another kind of attention, or the implementation ignores part of the config.
    """
    config = model.config.get_text_config()
    name = type(model).__name__
    implementation = config._attn_implementation  # noqa: SLF001 -- transformers has no public name for it
    if implementation not in ("sdpa", "eager"):
        raise UnsupportedError(
            f"Transformers: the attention implementation of {name} is {implementation!r}; load the model with "
            "attn_implementation='sdpa' or 'eager'"
        )
    if implementation == "sdpa" and getattr(config, "attn_logit_softcapping", None) is not None:
        raise UnsupportedError(
            f"Transformers: {name} caps attention scores (attn_logit_softcapping is {config.attn_logit_softcapping}), "
            "but attention implementation 'sdpa' ignores this; load the model with attn_implementation='eager'"
        )
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    types = set(getattr(config, "layer_types", None) or ())
    blocks = set(getattr(config, "layers_block_type", None) or ()) - {"attention"}
    unknown = sorted(types - {"full_attention", "sliding_attention"} | blocks)
    if unknown or (not types and chunk is not None and window is None):
        raise UnsupportedError(
            f"Transformers: {name} has layers that are neither full_attention nor sliding_attention "
            f"({', '.join(unknown) or f'attention_chunk_size is {chunk}'}); generate with engine.Vllm"
        )
    if window is not None and config.model_type in _IGNORE_THEIR_WINDOW:
        raise UnsupportedError(
            f"Transformers: {name} ignores its window of {window} tokens with attention implementation "
            f"{implementation!r}; generate with engine.Vllm"
        )
    if "sliding_attention" not in types:
        return {ALL_LAYERS: None if types else window}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(types)}
