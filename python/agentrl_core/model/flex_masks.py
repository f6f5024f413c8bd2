"""Functions that FlexAttention compiles: masks of trees, and the soft cap of scores.

They are in a file of their own, since torch.compile skips the code of packs in compiled models.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Mask: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def on_path(subtree_end: Tensor) -> Mask:
    """Return the mask of a tree: a query attends to the rows on its path. `subtree_end`: `[T]`."""

    def seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < subtree_end[key])

    return seen


def in_span(mask: Mask, positions: Tensor, window: int, chunk: int) -> Mask:
    """Return a mask limited to a window and a chunk of positions. `positions`: `[T]`."""
    window_ends, chunks = positions + window, positions // chunk

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = positions[query] < window_ends[key]
        return mask(batch, head, query, key) & near & (chunks[query] == chunks[key])

    return seen


@functools.cache
def soft_cap(softcap: float, device: torch.device) -> Callable[..., Tensor]:
    """Return the soft cap as a function for FlexAttention, cached by cap so that it is compiled once."""
    # A plain number does not compile with dynamic shapes.
    cap = torch.tensor(softcap, dtype=torch.float32, device=device)

    def capped(score: Tensor, *_place: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return capped
