"""Columns that components read and make: a level, a name and, if only a model can compute it, that model."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agentrl_core import _core
from agentrl_core.data.fact_columns import Declared
from agentrl_core.data.table_codes import FLAGS
from agentrl_core.exceptions import NotFoundError

Level = Literal["draw", "step", "token"]

LEVELS: tuple[Level, ...] = ("draw", "step", "token")
"""Levels from coarse to fine. A column of a coarser level is broadcast to a finer one."""

BATCH = "batch"
"""Key column that puts all rows into one group."""

TRAINED = "trained_tokens"
"""Number of trained tokens of a row. It is counted, so no column is needed."""

# Outputs of a model about a token: the column is the model's name followed by one of these.
_ANSWERS = ("sum_probability_squared", "logprob", "entropy", "value")


@dataclass(frozen=True, repr=False)
class Column:
    """Declaration of a batch column that a component reads or makes.

    Args:
        level: `draw`, `step` or `token`.
        name: name of the column in the batch.
        model: the model that computes it, by `annotate`; None: a fact of the rollout, or a column of another component.

    Example:
        >>> from agentrl_core.component import token
        >>> reference = token("reference_logprob", model="reference")
        >>> reference, reference.model
        (token('reference_logprob'), 'reference')
        >>> level, name = reference
    """

    level: Level
    name: str
    model: str | None = field(default=None, compare=False)

    def __iter__(self) -> Iterator[str]:
        yield self.level
        yield self.name

    def __repr__(self) -> str:
        return f"{self.level}({self.name!r})"

    @functools.cached_property
    def is_fact(self) -> bool:
        """Whether every batch has the column because rollouts record it."""
        return _is_fact(self.level, self.name)


def draw(name: str, *, model: str | None = None) -> Column:
    """Declare a column with one value per draw."""
    return Column("draw", name, model)


def step(name: str, *, model: str | None = None) -> Column:
    """Declare a column with one value per step."""
    return Column("step", name, model)


def token(name: str, *, model: str | None = None) -> Column:
    """Declare a column with one value per token."""
    return Column("token", name, model)


@functools.cache
def key_columns(names: str) -> tuple[str, ...]:
    """Split a comma-joined list of key columns; `batch` or an empty text gives none."""
    return () if names in ("", BATCH) else tuple(name.strip() for name in names.split(","))


def needed(level: Level, *names: str) -> tuple[Column, ...]:
    """Return the columns of one level that the given names refer to; `trained_tokens` needs none.

    A name that is not a fact and ends with an output of a model, such as `teacher_logprob`, is a column of that model.
    """
    return tuple(Column(level, name, _model_of(level, name)) for name in names if name != TRAINED)


def is_declared(column: Column, facts: Declared | None) -> bool:
    """Return whether declared facts include a column; a fact of an episode also holds for its steps.

    Example:
        >>> from agentrl_core.component.column import draw, is_declared, step
        >>> facts = {"step": {"flawed": "number"}, "trajectory": {"answer": "key"}}
        >>> [is_declared(column, facts) for column in (step("flawed"), draw("flawed"), draw("answer"), step("answer"))]
        [True, False, True, True]
    """
    levels = ("trajectory",) if column.level == "draw" else ("step", "trajectory")
    return any(column.name in (facts or {}).get(level, {}) for level in levels)


def _model_of(level: Level, name: str) -> str | None:
    if _is_fact(level, name):
        return None
    for answer in _ANSWERS:
        if name == answer or name.endswith(f"_{answer}"):
            return name.removesuffix(answer).rstrip("_") or "model"
    return None


@functools.cache
def _is_fact(level: Level, name: str) -> bool:
    if level == "step" and name in FLAGS:
        return True
    # A batch without rows has the facts of rollouts only, no computed columns.
    batch = _core.Batch.empty()
    if batch.has(name, level):
        return True
    try:
        batch.keys(name, level)
    except NotFoundError:
        return False
    return True
