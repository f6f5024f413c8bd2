"""The tables of a run as lazy frames."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Tables:
    """The tables of a run as lazy frames; see the design of each in `Batch` and `Store`.

    `draw_columns`, `step_columns` and `node_columns` hold what was computed for draws, for steps of draws (and, as
    lists, their tokens), and for stored tokens (as lists); without rows and values where nothing was computed. Where a
    name is in one iteration that of values of steps and in another that of lists of tokens, the lists have the suffix
    `_of_tokens`. `metrics` has a row for each number that was measured in a closed iteration of a store. `tasks` has a
    row for each change of a task's statistics; `latest_tasks` the last one of each.
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
        """The statistics of each task as they are now: the last of its rows in `tasks`, which has one for each change.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> scan(example()).latest_tasks.collect().height
            0
        """
        return self.tasks.unique("task_id", keep="last", maintain_order=True)
