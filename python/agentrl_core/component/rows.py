"""The rows of one level of a batch, as components see them: values, groups, votes, and which rows count."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component.column import LEVELS, TRAINED, Level, key_columns
from agentrl_core.data.codes import FLAGS
from agentrl_core.exceptions import RecipeError
from agentrl_core.operators import keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

Voter = Literal["row", "step", "trajectory", "episode", "token", "group"]
"""What votes once in a statistic: every row, step, trajectory, episode, trained token, or every group."""


def sum_rows(values: NDArray[Any], index: NDArray[np.uint32], length: int) -> NDArray[np.float64]:
    """The sum of the values of each of `length` rows, by the index of the row that each belongs to."""
    return np.bincount(index, weights=values, minlength=length).astype(np.float64)


def last_of_chain(chains: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a row is the last of its chain that counts; the rows of a chain stand together."""
    last = np.zeros(len(chains), dtype=np.bool_)
    counted = np.flatnonzero(valid)
    own = chains[counted]
    last[counted[np.append(own[1:] != own[:-1], True)[: len(own)]]] = True
    return last


def first_of_chain(chains: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a row is the first of its chain that counts; the rows of a chain stand together."""
    return last_of_chain(chains[::-1], valid[::-1])[::-1]


def level_of(batch: Batch, name: str, otherwise: Level) -> Level:
    """The coarsest level at which a column is there: the one it was made at."""
    return next((level for level in LEVELS if batch.has(name, level)), otherwise)


class Rows:
    """The rows of a level. Values are float64.

    A row counts if its draw votes and has a score, and a token if it is trained.

    Args:
        batch: where they are from.
        level: `draw`, `step` or `token`.
    """

    def __init__(self, batch: Batch, level: Level) -> None:
        self.batch = batch
        self.level = level

    def __len__(self) -> int:
        """How many rows there are."""
        return self.batch.num_draws if self.level == "draw" else int(self._offsets(self.level)[-1])

    def _offsets(self, level: Level) -> NDArray[np.int64]:
        return self.batch.offsets("step" if level == "step" else "token")

    def values(self, name: str) -> NDArray[np.float64]:
        """A column, broadcast from a coarser level where it is made there; `trained_tokens` is counted here."""
        return np.asarray(self._column(name), dtype=np.float64)

    def _column(self, name: str) -> NDArray[Any]:
        if name == TRAINED and not self.batch.has(name, self.level):
            return self.trained
        return np.asarray(self.batch.column(name, self.level))

    def names(self, name: str) -> list[str]:
        """A draw column of text or whole numbers as texts, which mean the same in every batch."""
        if self.batch.has(name, "draw"):
            return [str(value) for value in self.batch.column(name, "draw").tolist()]
        return self.batch.texts(name, "draw")

    def matrix(self, name: str) -> NDArray[np.float64]:
        """The numbered columns `name.0`, `name.1`, ... as the columns of one array, `float64[rows, k]`."""
        columns = [self.values(f"{name}.0")]
        while self.batch.has(f"{name}.{len(columns)}", self.level):
            columns.append(self.values(f"{name}.{len(columns)}"))
        return np.stack(columns, axis=1)

    def flags(self, name: str) -> NDArray[np.bool_]:
        """A column as booleans: True where it is a number other than 0; of steps, a `StepFlag` by its name too."""
        if name in FLAGS and self.level != "draw" and not self.batch.has(name, self.level):
            marked: NDArray[np.bool_] = self.batch.column("flags", self.level) & FLAGS[name] != 0
            return marked
        column = self._column(name)
        flags: NDArray[np.bool_] = column != 0
        return flags & ~np.isnan(column) if column.dtype.kind == "f" else flags

    def is_known(self, name: str) -> NDArray[np.bool_]:
        """Whether a column has a value: `success` of a trajectory that nothing judged has none."""
        return np.isfinite(self.values(name))

    def flagged(self, names: str) -> NDArray[np.bool_]:
        """Whether a draw has a row with one of a comma-joined list of flags, `bool[draws]`."""
        flags = np.logical_or.reduce([self.flags(name) for name in key_columns(names)])
        return np.bincount(self.draws, weights=flags, minlength=self.batch.num_draws) > 0.0

    def keys(self, names: str) -> NDArray[np.uint32]:
        """Group ids by a comma-joined list of key columns; `batch` stands for one group of all rows."""
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
        """The index of the row of a coarser (or the same) level that holds each row."""
        finer = LEVELS[LEVELS.index(level) + 1 : LEVELS.index(self.level) + 1]
        if not finer:
            return np.arange(len(self), dtype=np.uint32)
        index = np.arange(len(self._offsets(finer[0])) - 1, dtype=np.uint32)
        for name in finer:
            index = np.repeat(index, np.diff(self._offsets(name)))
        return index

    @functools.cached_property
    def valid(self) -> NDArray[np.bool_]:
        """Rows of draws that vote and have a score (or all that vote), and of tokens those that are trained."""
        if self.batch.has("score", "draw"):
            valid = np.isfinite(self.values("score"))
        else:
            valid = np.ones(len(self), dtype=np.bool_)
        valid &= np.asarray(self.batch.column("votes", self.level)) != 0
        return valid & self.flags("trainable") if self.level == "token" else valid

    @functools.cached_property
    def trained(self) -> NDArray[np.float64]:
        """The number of trained tokens of each row."""
        tokens = Rows(self.batch, "token")
        return sum_rows(tokens.flags("trainable"), tokens.within(self.level), len(self))

    @functools.cached_property
    def last(self) -> NDArray[np.bool_]:
        """Whether a row is the last of its draw that counts."""
        return last_of_chain(self.draws, self.valid)

    def voters(self, voter: Voter) -> NDArray[np.uint32] | None:
        """Ids of the rows that share a vote; None where every row has its own."""
        if voter in ("group", "episode"):
            return self.batch.keys(f"{voter}_id", self.level)
        if voter == "trajectory" and self.level != "draw":
            return keys.dense(self.draws)
        return keys.dense(self.within("step")) if voter == "step" and self.level == "token" else None

    def votes(self, voter: Voter, shared: str = "each") -> NDArray[np.float64] | None:
        """How much each row votes; None where all vote the same.

        Args:
            voter: a draw votes once for each `step`, a draw or step once for each trained `token`.
            shared: how the draws that share a row (a step, a token, a whole trajectory) count it: `each` in full,
                `split` equally, or only the first, its `owner`.
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
        """The part of a physical row that each of its uses has."""
        physical = {"draw": "trajectory_id", "step": "origin_trajectory_id,step", "token": "node_token"}
        draws = Rows(self.batch, "draw").valid
        return _core.weight.shares(self.keys(physical[self.level]), self.draws, draws, shared)

    def write(self, **columns: NDArray[Any]) -> Batch:
        """The batch with columns of this level, as float32: one value a row."""
        named = {name: np.asarray(values, dtype=np.float32) for name, values in columns.items()}
        return self.batch.with_columns(self.level, **named)

    def known(self, name: str) -> NDArray[np.bool_]:
        """The rows that count and whose value is known.

        Raises:
            RecipeError: rows count, but no value is known: the column was never filled.
        """
        known: NDArray[np.bool_] = self.valid & np.isfinite(self.values(name))
        if self.valid.any() and not known.any():
            raise RecipeError(
                f"column {name!r} at level {self.level} has no known value; record it with the rollouts, or "
                f"batch = arl.annotate(batch, {name!r}, model)"
            )
        return known

    def add(self, name: str, values: NDArray[np.float64]) -> Batch:
        """The batch with `values` added to the column `name`, if there is one, at the finer of the two levels."""
        return self._combine(name, values, np.add, np.float32)

    def scale(self, values: NDArray[np.float64], name: str = "weight") -> Batch:
        """The batch with the column `name` multiplied by `values`, at the finer of the two levels; absent, it is 1."""
        return self._combine(name, values, np.multiply, np.float32)

    def keep(self, mask: NDArray[np.bool_]) -> Batch:
        """The batch with only those rows kept, of the ones that are, at the finer of the two levels."""
        return self._combine("keep", mask, np.logical_and, np.uint8)

    def _combine(self, name: str, values: NDArray[Any], operation: np.ufunc, dtype: type[np.generic]) -> Batch:
        rows = Rows(self.batch, max(level_of(self.batch, name, self.level), self.level, key=LEVELS.index))
        combined = values[rows.within(self.level)]
        if self.batch.has(name, rows.level):
            combined = operation(rows.values(name), combined)
        return self.batch.with_columns(rows.level, **{name: combined.astype(dtype)})


def mean_of_tokens(batch: Batch, name: str, level: Level) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The mean of a token column over the tokens of each row that count, and which rows have any; 0 elsewhere."""
    tokens, rows = Rows(batch, "token"), Rows(batch, level)
    known = tokens.known(name)
    parts = tokens.within(level)
    counts = sum_rows(known.astype(np.float64), parts, len(rows))
    totals = sum_rows(np.where(known, tokens.values(name), 0.0), parts, len(rows))
    return totals / np.maximum(counts, 1.0), counts > 0.0
