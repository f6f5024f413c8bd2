"""The columns that components read and make: a level and a name, and the model that alone can make it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agentrl_core import _core
from agentrl_core.data.codes import FLAGS
from agentrl_core.data.facts import Declared
from agentrl_core.exceptions import NotFoundError

Level = Literal["draw", "step", "token"]

LEVELS: tuple[Level, ...] = ("draw", "step", "token")
"""From coarse to fine: a column of a coarser level is broadcast to a finer one."""

BATCH = "batch"
"""The name that stands for all rows as one group, where columns of keys are asked."""

TRAINED = "trained_tokens"
"""The name of the number of trained tokens of a row, which needs no column."""

# What a model answers about a token: a column of a model ends with one of these, after the model's name.
_ANSWERS = ("sum_probability_squared", "logprob", "entropy", "value")


@dataclass(frozen=True, repr=False)
class Column:
    """A column of a batch, as components declare what they read and make.

    Args:
        level: `draw`, `step` or `token`.
        name: what the batch calls it.
        model: the model that alone can make it, by `annotate`; None: a fact of the rollout, or another component's.

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

    @property
    def is_fact(self) -> bool:
        """Whether every batch has it, because a rollout says it."""
        return _is_fact(self.level, self.name)


def draw(name: str, *, model: str | None = None) -> Column:
    """A column with one value a draw."""
    return Column("draw", name, model)


def step(name: str, *, model: str | None = None) -> Column:
    """A column with one value a step."""
    return Column("step", name, model)


def token(name: str, *, model: str | None = None) -> Column:
    """A column with one value a token."""
    return Column("token", name, model)


def key_columns(names: str) -> tuple[str, ...]:
    """The columns of a comma-joined list of key columns; none of `batch` or an empty text."""
    return () if names in ("", BATCH) else tuple(name.strip() for name in names.split(","))


def needed(level: Level, *names: str) -> tuple[Column, ...]:
    """The columns of one level behind names that a user gave; `trained_tokens` needs none.

    A name that ends like a model's answer, and is no fact, is a column of that model: `teacher_logprob`.
    """
    return tuple(Column(level, name, _model_of(level, name)) for name in names if name != TRAINED)


def is_declared(column: Column, facts: Declared | None) -> bool:
    """Whether an environment that declares these facts says a column; what it says of an episode holds for its steps.

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
    # A batch without rows has what the rollouts said, and nothing that was computed.
    batch = _core.Batch.empty()
    if batch.has(name, level):
        return True
    try:
        batch.keys(name, level)
    except NotFoundError:
        return False
    return True
