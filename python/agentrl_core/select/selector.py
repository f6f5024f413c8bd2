"""Base class of selectors, their request and result, and the default selector, a random order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component.state import IterationRecord, State, Stateful
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.select.pool import Pool

TRAIN, SURVEY = 0, 1
"""Purposes of a group: training, or a survey, which is measured and never drawn."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Selected tasks with their number of rollouts and purpose: one row per group.

    Attributes:
        rows: rows of the pool.
        counts: number of rollouts of each group, at least 1.
        variants: prompt variant of each group; -1: none.
        purpose: 0: to train; 1: a survey, which is rolled out and kept but never drawn.
        probabilities: probability of each row; None if unknown.
        items: entry of the retry queue from which each group comes; -1: not from the queue.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int32]
    variants: NDArray[np.int32]
    purpose: NDArray[np.uint8]
    probabilities: NDArray[np.float64] | None
    items: NDArray[np.int64]

    @classmethod
    def of(cls, rows: NDArray[np.int64], group_size: int) -> Self:
        """Select rows to train on, with `group_size` rollouts each."""
        count = len(rows)
        return cls(
            rows.astype(np.int64),
            np.full(count, group_size, np.int32),
            np.full(count, -1, np.int32),
            np.zeros(count, np.uint8),
            None,
            np.full(count, -1, np.int64),
        )

    def __len__(self) -> int:
        """Number of groups."""
        return len(self.rows)

    def check(self, pool_size: int, title: str) -> None:
        """Raise an error if the selection cannot be rolled out.

        Raises:
            InvalidInputError: columns have unequal lengths or invalid values. The message names the
                selector, `title`.
        """
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None and len(value) != len(self.rows):
                raise InvalidInputError(
                    f"{title}: {option.name} has {len(value)} values for {len(self.rows)} rows; give one value for "
                    "each row"
                )
        for name, wrong, remedy in (
            ("rows", (self.rows < 0) | (self.rows >= pool_size), f"give rows of the pool, from 0 to {pool_size - 1}"),
            ("counts", self.counts < 1, "give at least one rollout for each group"),
            ("purpose", self.purpose > SURVEY, "give 0 (train) or 1 (survey)"),
        ):
            if wrong.any():
                place = int(np.flatnonzero(wrong)[0])
                raise InvalidInputError(f"{title}: {name}[{place}]={getattr(self, name)[place]}; {remedy}")

    def take(self, order: NDArray[np.int64]) -> Self:
        """Return the groups at some positions of the selection, in the given order."""
        columns: dict[str, Any] = {option.name: getattr(self, option.name) for option in fields(self)}
        reordered: dict[str, Any] = {name: None if each is None else each[order] for name, each in columns.items()}
        return type(self)(**reordered)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which `from_dict` reads back exactly."""
        table = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: None if column is None else column.tolist() for name, column in table.items()}

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Self:
        """Create a selection from the output of `to_dict`."""
        kinds = {"rows": np.int64, "counts": np.int32, "variants": np.int32, "purpose": np.uint8, "items": np.int64}
        columns = {name: np.asarray(table[name], kind) for name, kind in kinds.items()}
        chances = table["probabilities"]
        return cls(probabilities=None if chances is None else np.asarray(chances, np.float64), **columns)

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        """Concatenate the groups of several rounds."""
        if len(parts) == 1:
            return parts[0]
        known = all(part.probabilities is not None for part in parts)
        columns = {
            option.name: np.concatenate([getattr(part, option.name) for part in parts])
            for option in fields(cls)
            if known or option.name != "probabilities"
        }
        return cls(**({"probabilities": None} | columns))


@dataclass(frozen=True, eq=False)
class SelectionRequest:
    """Request for the tasks of one round.

    Attributes:
        groups: number of groups that are still needed.
        group_size: rollouts of a group, unless the selector chooses another number.
        round: 0 at first, then 1, 2, ... after admission rejected groups.
        taken: rows that earlier rounds of this iteration chose, in order.
        iteration: its number.
    """

    groups: int
    group_size: int
    round: int
    taken: NDArray[np.int64]
    iteration: int


@dataclass(frozen=True)
class Selector(Stateful, ABC):
    """Base class of components that choose tasks. One with state overrides `initial_state` and `next`."""

    phase: ClassVar[str] = "select"

    @abstractmethod
    def choose(self, pool: Pool, state: State, wanted: SelectionRequest, key: int) -> Selection:
        """Choose the groups of one round.

        Args:
            pool: the tasks.
            state: the selector's state at the start of the iteration.
            wanted: number of groups, and the rows that earlier rounds took.
            key: the only randomness, the same in every round of an iteration: `structural_seed(seed, iteration)`. Use
                `structural_seed(key, wanted.round)` for numbers that differ between rounds.

        Returns:
            Up to `wanted.groups` groups to train on (fewer if the pool has no more), and any number of surveys.
        """

    def columns(self, pool: Pool, state: State, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:  # noqa: ARG002 - no columns
        """Return columns of tasks: one number per row, by name. Draws have them as `task_<name>`."""
        return {}

    def initial_state(self) -> State:
        """Return the empty state."""
        return {}

    def next(self, state: State, closed: IterationRecord) -> State:  # noqa: ARG002 - no state
        """Return the state unchanged."""
        return state


@dataclass(frozen=True)
class Uniform(Selector):
    """Select every task with equal probability, without repetition in an iteration.

    Task i gets the counter-based number u_i = uniform(key + i); the iteration takes the tasks in ascending order of u.
    So the choice depends on the key alone, and each round continues after the one before.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.env import Task
        >>> from agentrl_core.select import Pool, Uniform, SelectionRequest
        >>> pool = Pool([("world", Task(str(number), "?", "sums", None)) for number in range(100)])
        >>> none = np.zeros(0, np.int64)
        >>> first = Uniform().choose(pool, {}, SelectionRequest(4, 8, 0, none, iteration=3), key=7)
        >>> second = Uniform().choose(pool, {}, SelectionRequest(2, 8, 1, first.rows, iteration=3), key=7)
        >>> six = Uniform().choose(pool, {}, SelectionRequest(6, 8, 0, none, iteration=3), key=7)
        >>> six.rows.tolist() == [*first.rows.tolist(), *second.rows.tolist()]
        True
    """

    def choose(self, pool: Pool, state: State, wanted: SelectionRequest, key: int) -> Selection:  # noqa: ARG002 - no state
        """Choose the next tasks of the iteration's random order; later rounds return fewer if the pool has no more.

        Raises:
            InvalidInputError: the first round requests more tasks than the pool has.
        """
        if wanted.groups > len(pool) and not wanted.round:
            raise InvalidInputError(
                f"{wanted.groups} tasks cannot be chosen from a pool of {len(pool)}; request fewer, or make the pool "
                "larger: Collector(task_pool=...) limits the tasks of the environment"
            )
        begin = len(wanted.taken)
        end = min(begin + wanted.groups, len(pool))
        order = _core.select.permuted(len(pool), max(end, 0), key, np.zeros(0, np.int64))
        return Selection.of(order[begin:], wanted.group_size)
