"""Lay out rows of tokens as trees, and divide items into bins of equal cost.

For a `Batch`, use `Update.pack`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns


class OutputBuffers(Protocol):
    """Interface of reusable output memory: `agentrl_core.model.buffers.PackBuffers`, of a higher layer than this."""

    def next(self) -> None:
        """Begin the next result, whose arrays may overwrite those of earlier results."""

    def take(self, name: str, length: int, dtype: Any) -> NDArray[Any]:
        """Return memory for an array of the current result."""


@dataclass(frozen=True, eq=False)
class TreeRows:
    """Rows of tokens as trees: T rows in S trees, N prediction pairs for M trained tokens.

    Attributes:
        input_ids: `int64[T]`, the input tokens, depth-first, with shared prefixes once.
        position_ids: `int64[T]`, the position of each in its row of tokens.
        subtree_end: `int32[T]`: row q attends to row k if and only if k <= q < subtree_end[k].
        cu_seqlens: `int32[S + 1]`, the start of each tree, then T.
        source_row: `int64[N]`, the row from which the target is predicted.
        target: `int64[N]`, the token that was generated after that row.
        token: `int64[N]`, index of the pair's first token among the given tokens.
        pair_offsets: `int64[N + 1]`: pair i covers the tokens `pair_tokens[pair_offsets[i]:pair_offsets[i + 1]]`.
        pair_tokens: `int64[M]`, positions among the given tokens.
        streams: `float32[N]` each.
    """

    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    subtree_end: NDArray[np.int32]
    cu_seqlens: NDArray[np.int32]
    source_row: NDArray[np.int64]
    target: NDArray[np.int64]
    token: NDArray[np.int64]
    pair_offsets: NDArray[np.int64]
    pair_tokens: NDArray[np.int64]
    streams: dict[str, NDArray[np.float32]]


def tree_layout(
    tokens: object,
    offsets: object,
    *,
    trained: object | None = None,
    summed: Mapping[str, object] | None = None,
    same: Mapping[str, object] | None = None,
    buffers: OutputBuffers | None = None,
) -> TreeRows:
    """Lay out rows of tokens as trees, and merge training data on shared tokens.

    Rows are sorted lexicographically, so that common prefixes are neighbours. Each row ends with its last trained
    token, which is predicted but not an input. Trained tokens at the same node of a tree are one prediction pair if
    their columns in `same` are equal bit for bit; otherwise each is a separate pair on the same row (a token sampled
    twice by chance has two log-probs). For columns in `summed` a pair has the sum over its tokens, computed in float64
    in the order of the tokens: use it for advantages and weights with their denominators.

    Args:
        tokens: n token ids, int32, row after row.
        offsets: rows + 1 whole numbers; row i is `tokens[offsets[i]:offsets[i + 1]]`.
        trained: `bool[n]`, never for the first token of a row. None: all but the first of each row.
        summed: columns of n numbers to sum into streams.
        same: columns of n float32 numbers to copy into streams.
        buffers: memory for the result, valid until it is reused. None: new memory.

    Raises:
        InvalidInputError: offsets do not fit the tokens, a column has another length, or the first token of a row is
            trained.

    Example:
        >>> from agentrl_core.operators.packing import tree_layout
        >>> rows = tree_layout([5, 6, 7, 5, 6, 8], [0, 3, 6], summed={"weight": [0, 0.5, 0.5, 0, 0.25, 0.75]})
        >>> rows.input_ids.tolist(), rows.subtree_end.tolist()
        ([5, 6], [2, 2])
        >>> rows.source_row.tolist(), rows.target.tolist(), rows.streams["weight"].tolist()
        ([0, 1, 1], [6, 7, 8], [0.75, 0.5, 0.75])
    """
    flat = _int32(tokens)
    count = len(flat)
    added_columns = {} if summed is None else _columns(summed, "summed", count)
    shared = {}
    if same is not None:
        shared = {name: values.astype(np.float32, copy=False) for name, values in _columns(same, "same", count).items()}
    take = None
    if buffers is not None:
        if not all(callable(getattr(buffers, name, None)) for name in ("take", "next")):
            raise InvalidInputError(f"buffers is {type(buffers).__name__}; give a PackBuffers, or None")
        buffers.next()
        take = buffers.take
    laid_out = _core.pack.tree_layout(
        flat,
        columns.integers(offsets, "offsets"),
        None if trained is None else columns.flags(trained, "trained", length=count, first="tokens"),
        list(shared.values()),
        take,
    )
    rows = TreeRows(*laid_out, streams={})
    if added_columns or shared:
        pairs = len(rows.token)
        for name in (*added_columns, *shared):
            new = np.empty(pairs, np.float32) if take is None else take(f"stream {name}", pairs, np.float32)
            rows.streams[name] = new
        _core.pack.pair_streams(
            [(values, rows.streams[name]) for name, values in added_columns.items()],
            [(values, rows.streams[name]) for name, values in shared.items()],
            rows.pair_offsets,
            rows.pair_tokens,
        )
    return rows


def balanced(costs: object, bins: int) -> list[NDArray[np.int64]]:
    """Distribute items over bins so that the most expensive bin costs at most 4/3 of the optimum, in O(n log n).

    Items go by decreasing cost into the currently cheapest bin (longest processing time): at most 4/3 of the optimum.

    Args:
        costs: n whole numbers from 0.
        bins: number of bins, from 1.

    Returns:
        The items of each bin, ascending.

    Raises:
        InvalidInputError: a cost is negative, there are no bins, or too many for memory.

    Example:
        >>> from agentrl_core.operators.packing import balanced
        >>> [items.tolist() for items in balanced([8, 7, 6, 5, 4], 2)]
        [[0, 3, 4], [1, 2]]
    """
    return _core.pack.balanced(columns.integers(costs, "costs"), bins)


def _columns(values_by_name: object, name: str, length: int) -> dict[str, NDArray[Any]]:
    table = columns.by_name(values_by_name, name)
    return {name: columns.numbers(values, name, length=length, first="tokens") for name, values in table.items()}


def _int32(tokens: object) -> NDArray[np.int32]:
    if columns.is_plain(tokens, "i"):
        return tokens
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1:
        return np.require(tokens, requirements=("C", "A"))
    wide = columns.integers(tokens, "tokens")
    if len(wide) and not -(2**31) <= wide.min() <= wide.max() < 2**31:
        odd = int(np.flatnonzero((wide < -(2**31)) | (wide >= 2**31))[0])
        raise InvalidInputError(f"tokens[{odd}] is {wide[odd]}; give token ids of 32 bits")
    return wide.astype(np.int32)
