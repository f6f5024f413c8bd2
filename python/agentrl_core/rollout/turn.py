"""A turn: one action of a branch and what the environment answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import ReferenceType

import numpy as np

from agentrl_core import _core
from agentrl_core.data.table_codes import StepFlag
from agentrl_core.engine.base import Segment
from agentrl_core.env.base import Content
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.token_path import Position

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Turn:
    """One action of a branch and what the environment answered.

    Attributes:
        branch_ref: weak reference to its branch; use `branch`.
        index: number of the turn on its path, from 0.
        begin: the position before its first token.
        length: number of the action's tokens.
        segments: generated segments, several if it was interrupted; none for a written action.
        text: the action, without its stop token.
        observation: observation of the environment; None at the end of the episode.
        reward: reward of the action, or None.
        facts: facts of the environment about the turn.
        flags: `env.StepFlag` bits.
        failed: reason for a failed episode, or None.
        over: whether the branch ends with it.
    """

    branch_ref: ReferenceType[Any] = field(repr=False)
    index: int
    begin: Position
    length: int
    segments: tuple[Segment, ...]
    text: str
    observation: Content | None
    reward: float | None
    facts: Mapping[str, Any]
    flags: int
    failed: str | None
    over: bool

    @property
    def branch(self) -> Any:
        """The `Branch` of this turn.

        Raises:
            InvalidInputError: the branch was garbage-collected.
        """
        return dereference(self.branch_ref, "the branch that took a turn")

    @property
    def end(self) -> Position:
        """The position after the answer, or after the action if the branch ends with it."""
        end: Position = self.branch.path.end_of(self.index)
        return end

    @property
    def follows_tool(self) -> bool:
        """Whether a tool result comes directly before this turn."""
        return self.begin.follows_tool

    @property
    def used_tool(self) -> bool:
        """Whether a tool result answered this turn."""
        return bool(self.flags & StepFlag.TOOL_RESULT)

    def position(self, token: int) -> Position:
        """Return the position after the first `token` tokens of the action.

        Raises:
            InvalidInputError: the path has fewer tokens.
        """
        place: Position = self.branch.position(self.begin.tokens + token)
        return place

    def uniform(self, column: int = 0) -> float:
        """Return a number in [0, 1) that depends on the seed of the turn's last segment and on `column` alone."""
        seed = self.segments[-1].seed if self.segments else self.branch.seed
        return uniform(_core.rng.structural_seed(seed, 1), column)


def uniform(seed: int, column: int = 0) -> float:
    """Return a number in [0, 1) for a seed."""
    return float(_core.rng.uniform(np.array([seed], np.uint64), column)[0])


def dereference(reference: ReferenceType[Value], what: str) -> Value:
    """Return the object of a weak reference, or raise an error that names `what` if it is gone.

    Args:
        reference: weak reference to the owner. A strong one would be a cycle, which keeps all sampled data in memory
            until garbage collection.
        what: description of the owner, for the message.

    Raises:
        InvalidInputError: the owner was garbage-collected.
    """
    value = reference()
    if value is None:
        raise InvalidInputError(f"{what} was garbage-collected; keep a reference to it as long as you use this object")
    return value
