"""State of a branch: its tokens, answers and rewards so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.base import Sampling
from agentrl_core.env.base import Content, Message, as_messages
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.branch_record import BranchRecord
from agentrl_core.rollout.conversations import BranchConversations
from agentrl_core.rollout.multi_agent import AgentView
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.runtime import BranchGroup, OneAtATime, RunningEpisode, Runtime
from agentrl_core.rollout.token_path import Position, TokenPath
from agentrl_core.rollout.turn import Turn, TurnBranch, dereference, uniform

Status = Literal["running", "finished", "truncated", "failed", "aborted", "pruned"]
Origin = Literal["generated", "expert", "imagined", "imported"]
Role = Literal["member", "baseline", "helper"]
Prompt = Content | Callable[[Content], Content]
"""A prompt, or a function from the environment's first observation to a prompt."""


class View:
    """State of a running trajectory; see `Branch` for its attributes."""

    def __init__(
        self,
        runtime: Runtime,
        group: BranchGroup,
        key: tuple[int, ...],
        path: TokenPath,
        episode: RunningEpisode,
        *,
        agent: str,
        seed: int,
        role: Role = "member",
        parent: Any = None,
        prompt: Prompt | None = None,
        prefix: Prefix | None = None,
        sampling: Sampling | None = None,
        facts: Mapping[str, Any] | None = None,
        asked: Content = "",
    ) -> None:
        self._group = ref(group)
        self.key = key
        self.name = path.name
        self.agent = agent
        self.role: Role = role
        self.origin: Origin = "generated" if parent is None else parent.origin
        self.parent = parent
        self.turns: list[Turn] = []
        self.status: Status = "running"
        self.record = BranchRecord(group.fact_levels, dict(facts or {}))
        self.seed = seed
        self._runtime = runtime
        self._path = path
        self._episode = episode
        self._prompt = prompt
        self._prefix = prefix
        self._content = asked
        self._sampling = sampling
        self._forks: dict[int, int] = {}
        """Forks made at each place."""
        self._segments: dict[str, int] = {}
        """Number of requested segments, by path name, and of answers: used for names in the journal."""
        self._answers = 0
        self._asking: set[str] = set()
        self._failure: str | None = None
        self._lanes: BranchConversations | None = None
        """Its conversations, if its episode has several."""
        self._awaited = OneAtATime(self.name)
        self._reference: ReferenceType[TurnBranch] = ref(self)
        runtime.began()

    @property
    def group(self) -> BranchGroup:
        """Its group, which owns it.

        Raises:
            InvalidInputError: the group was garbage-collected.
        """
        return dereference(self._group, f"the group of branch {self.name}")

    @property
    def handle(self) -> int:
        """The trajectory in the forest; a rollback gives another one."""
        return self._path.handle

    @property
    def path(self) -> TokenPath:
        """Its tokens, piece by piece."""
        return self._path

    @property
    def episode(self) -> RunningEpisode:
        """Its episode."""
        return self._episode

    @property
    def can_act(self) -> bool:
        """Whether it may act: it has not ended, and with several agents it is its turn."""
        if self.over or not isinstance(self._episode, AgentView):
            return not self.over
        return self.agent in self._episode.match.turn_of

    @property
    def has_open_action(self) -> bool:
        """Whether an action is open: begun, and not answered yet."""
        return bool(self._path.open)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status != "running"

    @property
    def reward(self) -> float:
        """Its reward: the sum over its turns, or that of `finish`."""
        return self.record.reward

    @property
    def success(self) -> bool | None:
        """Success as reported by the environment or `finish`; None if unknown."""
        return self.record.success

    @property
    def text(self) -> str:
        """Its text so far, its actions joined by blank lines."""
        return "\n\n".join([*(turn.text for turn in self.turns), *([self._path.text] if self._path.open else [])])

    @property
    def state_key(self) -> bytes | str:
        """The state before its next action."""
        states = [answer.state_key for answer in self._episode.answers if answer.state_key is not None]
        return states[-1] if states else self._episode.state_key

    def decode(self, tokens: NDArray[np.int32]) -> str:
        """Decode some of its tokens."""
        return self._runtime.chat(self.agent).decode(tokens)

    @property
    def prompt_messages(self) -> list[Message]:
        """Return its prompt as messages.

        Raises:
            InvalidInputError: its episode has not started.
        """
        if self._path.here is None:
            raise InvalidInputError(f"branch {self.name} has no prompt before its first turn; await a turn first")
        return as_messages(self._content)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens of its path: `int32[n]`."""
        self._path.flush()
        return self._runtime.forest.tokens(self.handle)

    @property
    def end(self) -> Position:
        """The place after its last answer.

        Raises:
            InvalidInputError: it has no prompt yet, or an action is open.
        """
        if self._path.open:
            raise InvalidInputError(f"branch {self.name}: an action is open; answer it first, or give a place of it")
        self._path.flush()
        if self._path.here is None:
            raise InvalidInputError(f"branch {self.name} has no prompt before its first turn; await a turn first")
        return self._path.here

    def __repr__(self) -> str:
        return f"Branch({self.name}, {self.agent}, {len(self.turns)} turns, {self.status})"

    def __lt__(self, other: View) -> bool:
        return (self.group.key, self.key) < (other.group.key, other.key)

    def uniform(self, *key: object) -> float:
        """Return a number in [0, 1), determined by seed, branch and key."""
        return uniform(self._runtime.seed_of("branch", self.name, *key, began=self.group.key[0]))

    def position(self, token: int) -> Position:
        """Return the place after a number of its path's tokens, possibly inside a node.

        Raises:
            InvalidInputError: the path has fewer tokens, or the number is 0.
        """
        turns = sum(turn.begin.tokens + turn.length <= token for turn in self.turns)
        return self._path.position(token, turns)

    def end_of(self, turn: int) -> Position:
        """Return the place after a turn of its path."""
        return self._path.end_of(turn)

    def position_after(self, turns: int) -> Position:
        """Return the place after n turns; 0: the start of the first action.

        Raises:
            InvalidInputError: it has fewer turns.
        """
        if not 0 <= turns <= len(self.turns) or not self.turns:
            raise InvalidInputError(
                f"branch {self.name} has {len(self.turns)} turns, so there is no place after {turns}; give a smaller "
                f"number"
            )
        return self.turns[turns - 1].end if turns else self.turns[0].begin
