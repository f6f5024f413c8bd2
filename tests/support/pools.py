"""Pools of tasks without an environment, and the records of closed iterations."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentrl_core.env import Task
from agentrl_core.select import Pool, SelectionRequest
from agentrl_core.select.task_outcomes import TaskOutcomes
from agentrl_core.select.tracker import Candidates


def pool(size: int, domains: tuple[str, ...] = ("sums",)) -> Pool:
    """Return tasks `0`, `1`, …, of the domains in turn."""
    return Pool([("world", Task(str(row), "?", domains[row % len(domains)], None)) for row in range(size)])


def selection_request(
    groups: int, *, iteration: int = 0, number: int = 0, taken: Any = (), group_size: int = 8
) -> SelectionRequest:
    return SelectionRequest(groups, group_size, number, np.array(taken, np.int64), iteration)


def candidates(rows: list[int], tracked: list[int], iteration: int = 0, of: Pool | None = None) -> Candidates:
    """Return tasks by the rows of a tracker, in their order."""
    places = [tracked.index(row) if row in tracked else -1 for row in rows]
    return Candidates(of or pool(100), np.array(rows, np.int64), np.array(places, np.int64), iteration)


class Story:
    """The visits of several iterations; the known rows grow as in a run."""

    def __init__(self) -> None:
        self.tracked: list[int] = []

    def visits(
        self,
        iteration: int,
        outcomes: dict[int, list[float]],
        *,
        rewards: dict[int, list[float]] | None = None,
        survey: bool = False,
        variants: dict[int, int] | None = None,
    ) -> TaskOutcomes:
        """Return an iteration in which the tasks of some rows had these successes (and rewards; else the same)."""
        rows = sorted(outcomes)
        self.tracked += [row for row in rows if row not in self.tracked]
        solved = [value for row in rows for value in outcomes[row]]
        paid = [value for row in rows for value in (rewards or outcomes)[row]]
        offsets = np.cumsum([0, *(len(outcomes[row]) for row in rows)])
        arms = [(variants or {}).get(row, -1) for row in rows for _ in outcomes[row]]
        return TaskOutcomes(
            np.array(rows, np.int64),
            offsets.astype(np.int64),
            np.array(paid, np.float64),
            np.array(solved, np.float64),
            np.full(len(solved), survey),
            np.array(arms, np.int32),
            np.array([self.tracked.index(row) for row in rows], np.int64),
            len(self.tracked),
            iteration,
        )

    def candidates(self, rows: list[int], iteration: int) -> Candidates:
        return candidates(rows, self.tracked, iteration)
