"""What replay answers: draws of stored trajectories."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

OWN, NEW = -1, -2
"""In `votes_in`: the group that a trajectory was rolled out in, intact; or a new group, by `new_group`."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of stored trajectories, one row each; nothing else can join a batch.

    Attributes:
        trajectory_ids: of the store.
        votes_in: the group of the batch that each votes in, or OWN, or NEW.
        new_group: rows with the same number share a new group.
        replaces: the draw of the batch in whose place it stands (which is kept, and drawn no more), or -1.
        votes: whether it counts in statistics.
        trained: whether losses train it.
        source: code of table `draws`.
        old_logprob: code of table `draws`: behaviour, recomputed or none.
        probability: how probable each draw was, where that is known.
        columns: numbers of the draws by name.
        reason: why each was drawn, in words.
    """

    trajectory_ids: NDArray[np.int64]
    votes_in: NDArray[np.int64]
    new_group: NDArray[np.int32]
    replaces: NDArray[np.int64]
    votes: NDArray[np.bool_]
    trained: NDArray[np.bool_]
    source: NDArray[np.uint8]
    old_logprob: NDArray[np.uint8]
    probability: NDArray[np.float64] | None = None
    columns: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    reason: list[str] = field(default_factory=list)
