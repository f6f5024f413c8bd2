"""Selection, the result of select, and its request."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError

TRAIN, SURVEY = 0, 1
"""Purposes of a group: to train on; or a survey, which is measured and never drawn."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Selected tasks with their number of rollouts and purpose: one row per group.

    Attributes:
        rows: rows of the pool.
        counts: rollouts of each, at least 1.
        variants: prompt variant; -1: none.
        purpose: 0: to train; 1: a survey, which is rolled out and kept but never drawn.
        probabilities: probability of each row; None if unknown.
        items: items of the queue; -1: none.
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
        """Refuse a selection that cannot be rolled out.

        Raises:
            InvalidInputError: columns have unequal lengths or invalid values. The message names `title`, which made
                them.
        """
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None and len(value) != len(self.rows):
                raise InvalidInputError(
                    f"{title}: selection has {len(self.rows)} rows and {len(value)} {option.name}; give one each"
                )
        for name, wrong, remedy in (
            ("rows", (self.rows < 0) | (self.rows >= pool_size), f"rows of the pool are 0 to {pool_size - 1}"),
            ("counts", self.counts < 1, "at least one rollout a group"),
            ("purpose", self.purpose > SURVEY, "0 (train) or 1 (survey)"),
        ):
            if wrong.any():
                place = int(np.flatnonzero(wrong)[0])
                raise InvalidInputError(f"{title}: {name}[{place}]={getattr(self, name)[place]}; {remedy}")

    def take(self, order: NDArray[np.int64]) -> Self:
        """Return some of the groups, in this order."""
        columns: dict[str, Any] = {option.name: getattr(self, option.name) for option in fields(self)}
        taken: dict[str, Any] = {name: None if each is None else each[order] for name, each in columns.items()}
        return type(self)(**taken)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which `from_dict` reads back exactly."""
        table = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: None if column is None else column.tolist() for name, column in table.items()}

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Self:
        """Read the output of `to_dict`."""
        kinds = {"rows": np.int64, "counts": np.int32, "variants": np.int32, "purpose": np.uint8, "items": np.int64}
        columns = {name: np.asarray(table[name], kind) for name, kind in kinds.items()}
        chances = table["probabilities"]
        return cls(probabilities=None if chances is None else np.asarray(chances, np.float64), **columns)

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        """Concatenate the groups of several rounds."""
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
        groups: how many groups are still needed.
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
