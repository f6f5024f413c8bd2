"""Apply a component to some draws of a batch, and keep the values of the others."""

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
"""Values of columns at rows that were not written; other columns are NaN there."""


def with_voting_draws(batch: Batch, held: NDArray[np.bool_]) -> Batch:
    """Return the batch without the scores of draws outside the mask `held`, so that those draws do not count."""
    score = batch.column("score", "draw") if batch.has("score", "draw") else np.zeros(batch.num_draws, np.float32)
    return batch.with_columns("draw", score=np.where(held, score, np.nan).astype(np.float32))


def write_masked(
    batch: Batch, held: NDArray[np.bool_], component: Callable[[Batch], Batch], makes: tuple[Column, ...]
) -> Batch:
    """Return the batch with a component applied only to the given draws; other draws keep their columns."""
    computed = component(with_voting_draws(batch, held))
    for column in makes:
        finer = LEVELS[LEVELS.index(column.level) :]
        # A column was made at the coarsest level at which it is found.
        level = next((level for level in finer if computed.has(column.name, level)), None)
        if level is None:
            continue
        rows = Rows(batch, level)
        values = computed.column(column.name, level)
        if batch.has(column.name, level):
            before = batch.column(column.name, level)
        else:
            before = np.full(len(values), _UNWRITTEN.get(column.name, np.nan), np.float32)
        batch = batch.with_columns(
            level, **{column.name: np.where(held[rows.draws], values, before).astype(values.dtype)}
        )
    return batch
