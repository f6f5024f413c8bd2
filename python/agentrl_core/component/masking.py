"""Components that apply to some draws of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.column import LEVELS, Column
from agentrl_core.component.rows import Rows

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_UNWRITTEN = {"weight": 1.0, "keep": 1.0}
"""What a column is where nobody wrote it; others are unknown there."""


def with_voting_draws(batch: Batch, held: NDArray[np.bool_]) -> Batch:
    """The batch in which only these draws have a score, so that no others count."""
    score = batch.column("score", "draw") if batch.has("score", "draw") else np.zeros(batch.num_draws, np.float32)
    return batch.with_columns("draw", score=np.where(held, score, np.nan).astype(np.float32))


def write_masked(
    batch: Batch, held: NDArray[np.bool_], component: Callable[[Batch], Batch], makes: tuple[Column, ...]
) -> Batch:
    """The batch with what a component makes of these draws alone; the others keep what they have."""
    made = component(with_voting_draws(batch, held))
    for column in makes:
        finer = LEVELS[LEVELS.index(column.level) :]
        # The coarsest level at which it is found is that at which it was made.
        level = next((level for level in finer if made.has(column.name, level)), None)
        if level is None:
            continue
        rows = Rows(batch, level)
        values = made.column(column.name, level)
        if batch.has(column.name, level):
            before = batch.column(column.name, level)
        else:
            before = np.full(len(values), _UNWRITTEN.get(column.name, np.nan), np.float32)
        batch = batch.with_columns(
            level, **{column.name: np.where(held[rows.draws], values, before).astype(values.dtype)}
        )
    return batch
