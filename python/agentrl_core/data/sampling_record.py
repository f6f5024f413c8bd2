"""Read how the tokens of a batch were sampled, and which images their contexts show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.batch import Batch


def tokens_with_images(batch: Batch) -> NDArray[np.bool_] | None:
    """Return whether the context of each action token shows images, `bool[tokens]`; None if none does."""
    sampled = batch._core.sampled()
    shows = sampled["shows_images"] != 0
    if not shows.any():
        return None
    has_image: NDArray[np.bool_] = shows[_nodes(sampled["offsets"], batch)]
    return has_image


def images_of_contexts(batch: Batch) -> tuple[list[bytes], NDArray[np.int64], NDArray[np.int64]]:
    """Return hashes and places of the images in `Batch.contexts`, in the order in which a model reads them.

    Returns:
        SHA-256 of each image, once; of each use the first token of its node, an index in `Contexts.tokens`, and the
        index of its image, `int64[uses]` each.
    """
    return batch._core.images_of_contexts()


def sampling_of_nodes(batch: Batch) -> dict[str, NDArray[np.float32]]:
    """Return `temperature`, `top_p` and `top_k` of each node, `float32[nodes]`; NaN if not recorded."""
    sampled = batch._core.sampled()
    return {name: sampled[name] for name in ("temperature", "top_p", "top_k")}


def nodes_of_tokens(batch: Batch, tokens: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the node of each chosen action token: a row of `sampling_of_nodes`."""
    return _nodes(batch._core.sampled()["offsets"], batch)[tokens]


def _nodes(offsets: NDArray[np.int64], batch: Batch) -> NDArray[np.int64]:
    """Return the row of the node of each action token."""
    nodes = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    rows: NDArray[np.int64] = nodes[np.asarray(batch.column("node_token", "token"))]
    return rows
