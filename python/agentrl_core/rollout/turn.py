"""A turn: one action of a branch and what the environment answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from weakref import ReferenceType

import numpy as np

from agentrl_core import _core
from agentrl_core.data.codes import StepFlag
from agentrl_core.engine.base import Segment
from agentrl_core.env.base import Content
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.token_path import Position

Value = TypeVar("Value")


class TurnBranch(Protocol):
    """A `Branch`, as its turns see it."""

    @property
    def name(self) -> str:
        """Unique in the run."""
        ...

    @property
    def seed(self) -> int:
        """63 bits of its own."""
        ...

    def position(self, token: int) -> Position:
        """The place behind so many tokens of its path."""
        ...

    def end_of(self, turn: int) -> Position:
        """The place behind a turn of its path."""
        ...


@dataclass(frozen=True, eq=False)
class Turn:
    """One action of a branch and what the environment answered.

    Attributes:
        taker: the branch that took it, which has its turns in turn: so it is held weakly, and `branch` gives it.
        index: its number among the turns of the path, from 0.
        begin: the place before its first token.
        length: how many tokens the action has.
        segments: what was generated for it, in parts where it was interrupted; none for a written action.
        text: the action, without its stop token.
        observation: what the environment said; None where the episode is over.
        reward: what the action was paid, or None.
        facts: what else the environment said of it.
        flags: `env.StepFlag` bits.
        failed: why the episode broke down, or None.
        over: whether the branch is over with it.
    """

    branch_ref: ReferenceType[TurnBranch] = field(repr=False)
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
    def branch(self) -> TurnBranch:
        """Which one took it.

        Raises:
            InvalidInputError: nobody holds its branch any more.
        """
        return dereference(self.branch_ref, "the branch that took a turn")

    @property
    def end(self) -> Position:
        """The place behind the answer, or behind the action where the branch is over with it."""
        return self.branch.end_of(self.index)

    @property
    def follows_tool(self) -> bool:
        """Whether it was taken at a tool result."""
        return self.begin.follows_tool

    @property
    def used_tool(self) -> bool:
        """Whether a tool answered it."""
        return bool(self.flags & StepFlag.TOOL_RESULT)

    def position(self, token: int) -> Position:
        """The place behind so many tokens of the action.

        Raises:
            InvalidInputError: the path has fewer tokens.
        """
        return self.branch.position(self.begin.tokens + token)

    def uniform(self, column: int = 0) -> float:
        """A number in [0, 1) that depends on the seed of the turn's last segment and on `column` alone."""
        seed = self.segments[-1].seed if self.segments else self.branch.seed
        return uniform(_core.rng.structural_seed(seed, 1), column)


def uniform(seed: int, column: int = 0) -> float:
    """A number in [0, 1) for a seed."""
    return float(_core.rng.uniform(np.array([seed], np.uint64), column)[0])


def dereference(reference: ReferenceType[Value], what: str) -> Value:
    """What a weak reference leads to, as long as somebody holds it.

    Args:
        reference: to what holds whoever has the reference: with a strong one, both would stay in memory until Python
            looks for cycles, and with them all that was sampled.
        what: it leads to, for the message.

    Raises:
        InvalidInputError: nobody holds it any more.
    """
    value = reference()
    if value is None:
        raise InvalidInputError(f"{what} is gone, since nobody holds it; hold it as long as its parts are asked for it")
    return value
