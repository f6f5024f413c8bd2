"""Attention to cached keys and values of fewer heads than there are query heads, without a copy for each query head."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

NAME = "agentrl_grouped"


@contextmanager
def grouped_attention(model: nn.Module) -> Iterator[None]:
    """Let a Hugging Face model that attends by sdpa use this attention inside the block.

    With a mask, transformers repeats keys and values for each query head before it calls sdpa: in a step of one token a
    row these copies take longer than the attention. Here the query heads of a key head are more queries of it:

        q [B, heads, T, D] -> [B, KV heads, heads / KV heads * T, D];  o = softmax(q k^T s + mask) v

    The choice is a field of the model's config, so the model must not run elsewhere meanwhile.
    """
    config: Any = model.config.get_text_config()  # type: ignore[operator] -- nn.Module knows no config
    if config._attn_implementation != "sdpa":  # noqa: SLF001 - the library's own switch, in no public name
        yield
        return
    _register()
    config._attn_implementation = NAME  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"  # noqa: SLF001


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)  # it makes no masks: the engine gives whole ones


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers calls it: `[B, heads, T, D]` in, `[B, T, heads, D]` out."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, count, width = query.shape
    groups = heads // key.shape[1]
    if groups == 1 or attention_mask is None or others.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    grouped = query.reshape(batch, key.shape[1], groups * count, width)
    mask = attention_mask.repeat(1, 1, groups, 1) if count > 1 else attention_mask
    out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, count, value.shape[3]).transpose(1, 2).contiguous(), None
