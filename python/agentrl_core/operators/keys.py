"""Keys of groups of rows. Functions on groups accept these keys, or raw ids."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

__all__ = ["composite", "dense"]


def dense(ids: object) -> NDArray[np.uint32]:
    """Number distinct ids 0, 1, 2, ... in order of first appearance.

    Results by group have this order, so `result[dense(ids)]` gives each row its group's result.

    Args:
        ids: n whole numbers of any width, strings, bytes, or `uint8[n, 16]` hashes; NumPy, Arrow, Polars, torch or a
            list. Strings and binary of Arrow and Polars are not copied.

    Returns:
        `uint32[n]`.

    Raises:
        InvalidInputError: ids have another type, or nulls.

    Example:
        >>> from agentrl_core import keys
        >>> keys.dense(["b", "a", "b"]).tolist()
        [0, 1, 0]
    """
    return columns.keys(ids, "ids")


def composite(first: object, *others: object) -> NDArray[np.uint32]:
    """Number rows by several columns: two rows get the same id if all columns are equal.

    Args:
        first: n ids, as in `dense`.
        others: more columns of n ids, such as agent roles, turns or states.

    Returns:
        `uint32[n]`.

    Raises:
        InvalidInputError: lengths differ, or as in `dense`.

    Example:
        >>> from agentrl_core import keys
        >>> keys.composite(["task-a", "task-a", "task-b"], ["solver", "critic", "critic"]).tolist()
        [0, 1, 2]
    """
    ids = columns.keys(first, "first")
    for place, column in enumerate(others):
        ids, _ = _core.keys.pair(ids, columns.keys(column, f"others[{place}]", length=len(ids), first="first"))
    return ids


def history(
    states: object, trajectory_ids: object, group_ids: object, levels: int
) -> list[tuple[NDArray[np.uint32], NDArray[np.bool_]]]:
    """Number steps so that two of a group share an id if their last k states are equal, for every k from 1 to `levels`.

    Two steps share the key of level k if their group and their last k states are equal, including the state acted on.
    So level 1 is GiGPO's anchor state, and each level splits the one before it. Ids are exact, not hashes. From HGPO.

    Args:
        states: n keys of the states acted on, as in `dense`.
        trajectory_ids: n ids; the steps of a trajectory are in order, possibly interleaved with others.
        group_ids: n ids.
        levels: the greatest depth, at least 1.

    Returns:
        For each level `uint32[n]` ids and `bool[n]`: whether the trajectory had that many states. Ids of other rows
            have no meaning.

    Raises:
        InvalidInputError: lengths differ, `levels` is below 1, or there is not enough memory.

    Example:
        >>> from agentrl_core.operators.keys import history
        >>> anchors, paths = history(["a", "c", "b", "c"], [0, 0, 1, 1], [0, 0, 0, 0], levels=2)
        >>> anchors[0].tolist(), paths[1].tolist()
        ([0, 1, 2, 1], [False, True, False, True])
    """
    state_ids = columns.ids(states, "states")
    count = len(state_ids)
    return _core.keys.history(
        state_ids,
        columns.ids(trajectory_ids, "trajectory_ids", length=count, first="states"),
        columns.ids(group_ids, "group_ids", length=count, first="states"),
        levels,
    )


def similar(
    texts: object,
    group_ids: object | None = None,
    *,
    threshold: float = 0.9,
    kind: Literal["sequence", "minhash"] = "sequence",
    words: int = 3,
    hashes: int = 128,
    bands: int = 32,
) -> NDArray[np.uint32]:
    """Number texts so that nearly equal ones share an id.

    Row by row, a text joins the first cluster of its group whose first text is at least `threshold` similar, or opens a
    new one. Similarity is 2 * (characters in matching blocks) / (characters of both), which is
    `difflib.SequenceMatcher(None, text, first_text).ratio()` as in GiGPO's public code; or, for many or long texts, the
    share of word shingles in common (Jaccard), estimated from MinHash sketches of which only those with a band in
    common are compared. Both are fast if most texts join a cluster; the time grows with the number of clusters to
    compare with.

    Args:
        texts: n strings.
        group_ids: n ids; texts of different groups never share an id. None: one group.
        threshold: 0 to 1.
        kind: `sequence` or `minhash`.
        words: words of a shingle.
        hashes: hashes of a sketch: the estimate's standard error is at most 0.5 / sqrt(hashes).
        bands: bands of a sketch, a divisor of `hashes`. More bands find less similar texts.

    Returns:
        `uint32[n]`.

    Raises:
        InvalidInputError: lengths differ, a value is not a string, or an option is not possible.

    Example:
        >>> from agentrl_core.operators.keys import similar
        >>> similar(["You are in a hall.", "You are in the hall.", "A locked door."], threshold=0.8).tolist()
        [0, 0, 1]
    """
    column = texts if isinstance(texts, list) else columns.column(texts, "texts").tolist()
    if kind not in ("sequence", "minhash"):
        raise InvalidInputError(f"kind is {kind!r}; use sequence or minhash")
    groups = (
        np.zeros(len(column), dtype=np.uint32)
        if group_ids is None
        else columns.keys(group_ids, "group_ids", length=len(column), first="texts")
    )
    sketch = (words, hashes, bands) if kind == "minhash" else None
    return _core.keys.similar(column, groups, threshold, sketch)
