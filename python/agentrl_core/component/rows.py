"""Rows of a batch's draws, steps or tokens: values, groups, and which rows count in statistics."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component.column import LEVELS, TRAINED, Level, key_columns
from agentrl_core.data.table_codes import FLAGS
from agentrl_core.exceptions import RecipeError
from agentrl_core.operators import keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

Voter = Literal["row", "step", "trajectory", "episode", "token", "group"]
"""Unit that votes once in a statistic: each row, step, trajectory, episode, trained token or group."""


def sum_rows(values: NDArray[Any], index: NDArray[np.uint32], length: int) -> NDArray[np.float64]:
    """Sum values into `length` rows; `index` has the row of each value."""
    return np.bincount(index, weights=values, minlength=length).astype(np.float64)


def last_of_chain(chains: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the last valid row of each chain; rows of a chain are contiguous."""
    last = np.zeros(len(chains), dtype=np.bool_)
    valid_rows = np.flatnonzero(valid)
    valid_chains = chains[valid_rows]
    last[valid_rows[np.append(valid_chains[1:] != valid_chains[:-1], True)[: len(valid_chains)]]] = True
    return last


def first_of_chain(chains: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the first valid row of each chain; rows of a chain are contiguous."""
    return last_of_chain(chains[::-1], valid[::-1])[::-1]


def level_of(batch: Batch, name: str, otherwise: Level) -> Level:
    """Return the level at which a column was computed, the coarsest one it has; without the column, `otherwise`."""
    return next((level for level in LEVELS if batch.has(name, level)), otherwise)


class Rows:
    """Rows of a level of a batch, with values as float64.

    A row is valid if its draw votes and has a score; a token must also be trained.

    Args:
        batch: the batch of the rows.
        level: `draw`, `step` or `token`.
    """

    def __init__(self, batch: Batch, level: Level) -> None:
        self.batch = batch
        self.level = level

    def __len__(self) -> int:
        """Number of rows."""
        return self.batch.num_draws if self.level == "draw" else int(self._offsets(self.level)[-1])

    def _offsets(self, level: Level) -> NDArray[np.int64]:
        return self.batch.offsets("step" if level == "step" else "token")

    def values(self, name: str) -> NDArray[np.float64]:
        """Return a column, broadcast from a coarser level if needed; `trained_tokens` is counted here."""
        return np.asarray(self._column(name), dtype=np.float64)

    def _column(self, name: str) -> NDArray[Any]:
        if name == TRAINED and not self.batch.has(name, self.level):
            return self.trained
        return np.asarray(self.batch.column(name, self.level))

    def names(self, name: str) -> list[str]:
        """Return a draw column of text or integers as texts, which have the same meaning in every batch."""
        if self.batch.has(name, "draw"):
            return [str(value) for value in self.batch.column(name, "draw").tolist()]
        return self.batch.texts(name, "draw")

    def matrix(self, name: str) -> NDArray[np.float64]:
        """Return the numbered columns `name.0`, `name.1`, ... as columns of one array, `float64[rows, k]`."""
        columns = [self.values(f"{name}.0")]
        while self.batch.has(f"{name}.{len(columns)}", self.level):
            columns.append(self.values(f"{name}.{len(columns)}"))
        return np.stack(columns, axis=1)

    def flags(self, name: str) -> NDArray[np.bool_]:
        """Return a column as booleans, True for nonzero numbers. At level `step`, `name` may be a `StepFlag`."""
        if name in FLAGS and self.level != "draw" and not self.batch.has(name, self.level):
            marked: NDArray[np.bool_] = self.batch.column("flags", self.level) & FLAGS[name] != 0
            return marked
        column = self._column(name)
        flags: NDArray[np.bool_] = column != 0
        return flags & ~np.isnan(column) if column.dtype.kind == "f" else flags

    def is_known(self, name: str) -> NDArray[np.bool_]:
        """Mark the finite values of a column: `success` of a trajectory without a verdict is NaN."""
        return np.isfinite(self.values(name))

    def flagged(self, names: str) -> NDArray[np.bool_]:
        """Mark draws with at least one row that has one of the comma-joined flags, `bool[draws]`."""
        flags = np.logical_or.reduce([self.flags(name) for name in key_columns(names)])
        return np.bincount(self.draws, weights=flags, minlength=self.batch.num_draws) > 0.0

    def keys(self, names: str) -> NDArray[np.uint32]:
        """Return group ids by a comma-joined list of key columns; `batch` puts all rows into one group."""
        columns = key_columns(names)
        if not columns:
            return np.zeros(len(self), dtype=np.uint32)
        parts = [
            keys.dense(self.batch.column(name, self.level))
            if name == "node_token"
            else self.batch.keys(name, self.level)
            for name in columns
        ]
        return parts[0] if len(parts) == 1 else keys.composite(*parts)

    @functools.cached_property
    def draws(self) -> NDArray[np.uint32]:
        """The index of the draw of each row."""
        return self.within("draw")

    def within(self, level: Level) -> NDArray[np.uint32]:
        """Return the index of the row of a coarser (or the same) level that holds each row."""
        finer = LEVELS[LEVELS.index(level) + 1 : LEVELS.index(self.level) + 1]
        if not finer:
            return np.arange(len(self), dtype=np.uint32)
        index = np.arange(len(self._offsets(finer[0])) - 1, dtype=np.uint32)
        for name in finer:
            index = np.repeat(index, np.diff(self._offsets(name)))
        return index

    @functools.cached_property
    def valid(self) -> NDArray[np.bool_]:
        """Rows whose draw votes and, if the batch has scores, has a score; tokens must also be trainable."""
        if self.batch.has("score", "draw"):
            valid = np.isfinite(self.values("score"))
        else:
            valid = np.ones(len(self), dtype=np.bool_)
        valid &= np.asarray(self.batch.column("votes", self.level)) != 0
        return valid & self.flags("trainable") if self.level == "token" else valid

    @functools.cached_property
    def trained(self) -> NDArray[np.float64]:
        """The number of trainable tokens of each row."""
        tokens = Rows(self.batch, "token")
        return sum_rows(tokens.flags("trainable"), tokens.within(self.level), len(self))

    @functools.cached_property
    def last(self) -> NDArray[np.bool_]:
        """Mark the last valid row of each draw."""
        return last_of_chain(self.draws, self.valid)

    def voters(self, voter: Voter) -> NDArray[np.uint32] | None:
        """Return ids of rows that share a vote; None if every row has its own."""
        if voter in ("group", "episode"):
            return self.batch.keys(f"{voter}_id", self.level)
        if voter == "trajectory" and self.level != "draw":
            return keys.dense(self.draws)
        return keys.dense(self.within("step")) if voter == "step" and self.level == "token" else None

    def votes(self, voter: Voter, shared: str = "each") -> NDArray[np.float64] | None:
        """Return the votes of each row; None if all are equal.

        Args:
            voter: with `step` a draw has one vote per step; with `token` a draw or step has one per trained token.
            shared: how draws that share a row (a step, a token, a trajectory) count it: `each` counts it fully, `split`
                divides it equally, `owner` counts it in the first draw only.
        """
        votes: NDArray[np.float64] | None = None
        if voter == "token" and self.level != "token":
            votes = self.trained
        elif voter == "step" and self.level == "draw":
            votes = np.diff(self.batch.offsets("step")).astype(np.float64)
        if shared == "each":
            return votes
        shares = self._shares(shared)
        return shares if votes is None else votes * shares

    def _shares(self, shared: str) -> NDArray[np.float64]:
        """Return the share with which each row counts, if draws use the same stored trajectory, step or token."""
        physical = {"draw": "trajectory_id", "step": "origin_trajectory_id,step", "token": "node_token"}
        draws = Rows(self.batch, "draw").valid
        return _core.weight.shares(self.keys(physical[self.level]), self.draws, draws, shared)

    def write(self, **columns: NDArray[Any]) -> Batch:
        """Return the batch with new columns of this level, as float32, one value per row."""
        float_columns = {name: np.asarray(values, dtype=np.float32) for name, values in columns.items()}
        return self.batch.with_columns(self.level, **float_columns)

    def known(self, name: str) -> NDArray[np.bool_]:
        """Return the mask of valid rows with a finite value.

        Raises:
            RecipeError: there are valid rows, but none has a value: the column was never filled.
        """
        known: NDArray[np.bool_] = self.valid & np.isfinite(self.values(name))
        if self.valid.any() and not known.any():
            raise RecipeError(
                f"column {name!r} has no finite value at any valid row of level {self.level}; record it with the "
                f"rollouts, or if a model can compute it: batch = arl.annotate(batch, {name!r}, model)"
            )
        return known

    def add(self, name: str, values: NDArray[np.float64]) -> Batch:
        """Return the batch with `values` added to column `name`, or as that column, at the finer of both levels."""
        return self._combine(name, values, np.add, np.float32)

    def scale(self, values: NDArray[np.float64], name: str = "weight") -> Batch:
        """Return the batch with column `name` multiplied by `values`, at the finer of both levels; the default is 1."""
        return self._combine(name, values, np.multiply, np.float32)

    def keep(self, mask: NDArray[np.bool_]) -> Batch:
        """Return the batch with column `keep` restricted to the mask, at the finer of both levels."""
        return self._combine("keep", mask, np.logical_and, np.uint8)

    def _combine(self, name: str, values: NDArray[Any], operation: np.ufunc, dtype: type[np.generic]) -> Batch:
        rows = Rows(self.batch, max(level_of(self.batch, name, self.level), self.level, key=LEVELS.index))
        combined = values[rows.within(self.level)]
        if self.batch.has(name, rows.level):
            combined = operation(rows.values(name), combined)
        return self.batch.with_columns(rows.level, **{name: combined.astype(dtype)})


def mean_of_tokens(batch: Batch, name: str, level: Level) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the mean of a token column over the valid tokens of each row (0 without any), and which rows have some."""
    tokens, rows = Rows(batch, "token"), Rows(batch, level)
    known = tokens.known(name)
    parts = tokens.within(level)
    counts = sum_rows(known.astype(np.float64), parts, len(rows))
    totals = sum_rows(np.where(known, tokens.values(name), 0.0), parts, len(rows))
    return totals / np.maximum(counts, 1.0), counts > 0.0
