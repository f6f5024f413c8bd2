"""The tables of a run as lazy frames."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Tables:
    """The tables of a run as lazy frames; see `Batch` and `Store` for the columns of each.

    `draw_columns`, `step_columns` and `node_columns` have the columns computed for draws, for steps of draws (and, as
    lists, their tokens), and for stored tokens (as lists); they are empty if nothing was computed. If a name is used
    for values of steps in one iteration and for lists of tokens in another one, the lists have the suffix `_of_tokens`.
    `metrics` has a row for each metric of a closed iteration of a store. `tasks` has a row for each change of a task's
    statistics; `latest_tasks` has the last one of each task.
    """

    nodes: pl.LazyFrame
    steps: pl.LazyFrame
    trajectories: pl.LazyFrame
    draws: pl.LazyFrame
    tasks: pl.LazyFrame
    decisions: pl.LazyFrame
    draw_columns: pl.LazyFrame
    step_columns: pl.LazyFrame
    node_columns: pl.LazyFrame
    metrics: pl.LazyFrame

    @property
    def latest_tasks(self) -> pl.LazyFrame:
        """The current statistics of each task: its last row in `tasks`, which has a row for each change.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> scan(example()).latest_tasks.collect().height
            0
        """
        return self.tasks.unique("task_id", keep="last", maintain_order=True)
