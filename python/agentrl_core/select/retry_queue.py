"""Retry the tasks that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Component, option

if TYPE_CHECKING:
    from agentrl_core.component.state import State
    from agentrl_core.select.selector import Selection
    from agentrl_core.select.task_outcomes import TaskOutcomes


@dataclass(frozen=True)
class RetryQueue(Component):
    """Retry unsolved tasks later, from a queue.

    A task whose group had no success joins the queue, once. It leaves when it is solved, was retried `tries` times, or
    has waited for more than `max_age` iterations. Every `every` iterations `share` of the groups come from the queue.

    Source: DeepTravel arXiv:2509.21842 (`RetryQueue(every=5, share=0.2, tries=5)`).

    Args:
        every: iterations between two uses of the queue.
        share: share of the groups that come from the queue, if it has enough tasks.
        tries: largest number of retries of a task; None: until it is solved.
        order: the oldest task first (`fifo`) or the newest (`lifo`).
        max_age: iterations that a task may wait; None: any number.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import RetryQueue
        >>> RetryQueue().initial_state()["rows"].tolist()
        []
    """

    every: int = option(5, at_least=1)
    share: float = option(0.2, above=0, at_most=1)
    tries: int | None = option(5, at_least=1)
    order: Literal["fifo", "lifo"] = "fifo"
    max_age: int | None = option(None, at_least=1)

    def initial_state(self) -> State:
        """Return an empty queue."""
        names = ("items", "rows", "born", "tries")
        return {name: np.zeros(0, np.int64) for name in names} | {"next": 0}

    def offered(self, state: State, groups: int, iteration: int, taken: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in the queue of the tasks that an iteration retries."""
        if iteration % self.every:
            return np.zeros(0, np.int64)
        free = np.flatnonzero(~np.isin(state["rows"], taken))
        if self.max_age is not None:
            free = free[iteration - state["born"][free] <= self.max_age]
        free = free if self.order == "fifo" else free[::-1]
        return free[: int(self.share * groups)]

    def next(self, state: State, visits: TaskOutcomes, selection: Selection | None) -> State:
        """Return the queue after an iteration."""
        visits = visits.subset(~np.isnan(visits.solved) & ~visits.survey)
        solved = visits.sums(visits.solved) > 0
        tries = state["tries"].copy()
        if selection is not None:
            tries[np.isin(state["items"], selection.items[selection.items >= 0])] += 1
        stays = ~np.isin(state["rows"], visits.rows[solved])
        stays &= True if self.tries is None else tries < self.tries
        stays &= True if self.max_age is None else visits.iteration + 1 - state["born"] <= self.max_age
        # A task that just used up its retries does not join again because of the same failure.
        fresh = visits.rows[~solved & ~np.isin(visits.rows, state["rows"])]
        items = state["next"] + np.arange(len(fresh))
        born = np.full(len(fresh), visits.iteration)
        new = {"items": items, "rows": fresh, "born": born, "tries": np.zeros(len(fresh))}
        old = {"items": state["items"], "rows": state["rows"], "born": state["born"], "tries": tries}
        joined = {name: np.append(old[name][stays], new[name]).astype(np.int64) for name in old}
        return joined | {"next": int(state["next"]) + len(fresh)}
