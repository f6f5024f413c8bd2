"""A match: one episode that several agents play, each by a branch of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agentrl_core.env.base import Content, Context, as_messages
from agentrl_core.env.episode import EpisodeError, JointStep, StepRecord, agent_state_key
from agentrl_core.exceptions import InternalError, InvalidInputError
from agentrl_core.rollout.runtime import OneAtATime, RunningEpisode

if TYPE_CHECKING:
    from agentrl_core.rollout.token_path import TokenPath
    from agentrl_core.rollout.turn import Turn


class SharedEpisodeBranch(Protocol):
    """A `Branch`, as its match sees it."""

    agent: str
    name: str

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        ...

    @property
    def has_open_action(self) -> bool:
        """Whether an action is open."""
        ...

    @property
    def path(self) -> TokenPath:
        """Its tokens."""
        ...

    def _take_result(self, answer: StepRecord | None) -> Turn:
        """What the environment answered to the open action."""
        ...

    def _take_observation(self, answer: StepRecord) -> None:
        """What it is told while others move."""
        ...

    def _end_with_episode(self) -> None:
        """The episode is over."""
        ...

    def _fail(self, reason: str) -> None:
        """The episode cannot go on."""
        ...


class SharedEpisode:
    """An episode of several agents, and the branches that play it.

    Args:
        episode: what answers them together.
        name: in the journal: that of the first branch.
    """

    def __init__(self, episode: RunningEpisode, name: str) -> None:
        self.episode = episode
        self.branches: list[SharedEpisodeBranch] = []
        self._name = name
        self._moves = 0
        self._begun = asyncio.Lock()
        self._moving = OneAtATime(name)

    @property
    def acted(self) -> int:
        """How many joint moves were answered."""
        return len(self.episode.answers)

    @property
    def begin(self) -> JointStep:
        """What it begins with, by agent.

        Raises:
            InvalidInputError: the environment knows no agents.
        """
        begin: Any = self.episode.observation
        if not isinstance(begin, JointStep):
            raise InvalidInputError(
                f"branch {self._name}: its environment has one agent, so that no other can play the same episode; give "
                "one whose reset gives an env.MultiEpisode"
            )
        return begin

    @property
    def turn_of(self) -> tuple[str, ...]:
        """The agents that move next."""
        answers: Sequence[Any] = self.episode.answers
        return (answers[-1] if answers else self.begin).turn_of

    def told(self, agent: str, first: int, last: int) -> list[StepRecord]:
        """What an agent was answered and told by the joint moves of a range."""
        answers: Sequence[Any] = self.episode.answers[first:last]
        return [joint.of[agent] for joint in answers if agent in joint.of]

    def words(self, agent: str) -> list[StepRecord]:
        """What an agent was told and paid while others moved."""
        moves: Sequence[Any] = self.episode.moves
        joint = zip(moves, self.episode.answers, strict=True)
        return [answer.of[agent] for move, answer in joint if agent in answer.of and agent not in move]  # type: ignore[attr-defined]

    def goes_on(self, agent: str) -> bool:
        """Whether an agent still has a part."""
        answers = [answer.outcome for answer in self.told(agent, 0, self.acted)]
        return not any(outcome.terminated or outcome.truncated for outcome in answers)

    async def reset(self) -> None:
        """Find out what it begins with, once for all."""
        async with self._begun:
            await self.episode.reset(f"{self._name}/begin")

    async def ready(self) -> None:
        """Be where the moves have led."""
        async with self._begun:
            await self.episode.ready()

    def copy(self, acted: int, name: str) -> SharedEpisode:
        """A match of its own that is where this one was behind so many moves."""
        return SharedEpisode(self.episode.copy(acted), name)

    def close(self) -> None:
        """A branch has ended: so has the episode when all have."""
        if all(branch.over for branch in self.branches):
            self.episode.close()

    async def move(self, branches: Sequence[SharedEpisodeBranch]) -> list[Turn]:
        """Give the open actions of some branches to the episode, as one joint move; the turns in the same order.

        Raises:
            InvalidInputError: two are of one agent, or another has an action open meanwhile.
        """
        moving = [branch for branch in branches if not branch.over]
        texts = {branch.agent: branch.path.action for branch in moving}
        if len(texts) < len(moving):
            raise InvalidInputError(
                f"match {self._name}: two branches of one agent cannot move together; fork the match for the other"
            )
        for other in self.branches:
            if other.has_open_action and not other.over and other not in moving:
                raise InvalidInputError(
                    f"branch {other.name} has an action open while others move; let them move together: group.turn"
                )
        joint = await self._answered(texts) if moving else None
        turns = [branch._take_result(None if joint is None else joint.of.get(branch.agent)) for branch in branches]
        if joint is None:
            return turns
        for other in self.branches:
            if other not in moving and not other.over and other.agent in joint.of:
                other._take_observation(joint.of[other.agent])
        if not joint.turn_of:
            for other in self.branches:
                other._end_with_episode()
        return turns

    async def _answered(self, texts: Mapping[str, str]) -> JointStep | None:
        """What a joint move gives; None: the episode broke down, and with it all branches."""
        name = f"{self._name}/answer{self._moves}"
        self._moves += 1
        with self._moving:
            try:
                return await self.episode.step(name, texts)  # type: ignore[return-value]
            except EpisodeError as error:
                for branch in self.branches:
                    if not branch.over:
                        branch._fail(str(error))
                return None


class AgentView:
    """A match as one agent sees it: the episode of its branch."""

    def __init__(self, match: SharedEpisode, agent: str) -> None:
        self.match = match
        self.agent = agent

    @property
    def title(self) -> str:
        """What plays it, for messages."""
        return self.match.episode.title

    @property
    def observation(self) -> Content:
        """What it began with, and what it was told since, before its first action."""
        begin = self.match.begin
        if self.agent not in begin.of:
            known = ", ".join(map(repr, begin.of))
            raise InvalidInputError(f"start: agent={self.agent!r} has no part in the episode; it is played by {known}")
        first: Content = begin.of[self.agent]
        told = [answer.outcome.observation for answer in self.match.told(self.agent, 0, self.match.acted)]
        words = [observation for observation in told if observation is not None]
        return [message for said in (first, *words) for message in as_messages(said)] if words else first

    @property
    def state_key(self) -> bytes | str:
        """The state that it began in, of this agent."""
        return agent_state_key(self.agent, self.match.episode.state_key)

    @property
    def tools(self) -> Any:
        """Schemas of the tools that the prompt shows."""
        return self.match.episode.tools

    @property
    def contexts(self) -> Sequence[Context]:
        """None: an agent has one conversation."""
        return ()

    @property
    def answers(self) -> Sequence[StepRecord]:
        """What was answered to all moves."""
        return self.match.episode.answers

    @property
    def moves(self) -> Sequence[Any]:
        """All moves."""
        return self.match.episode.moves

    async def reset(self, name: str) -> None:
        """See `RunningEpisode`."""
        del name
        await self.match.reset()

    async def ready(self) -> None:
        """See `RunningEpisode`."""
        await self.match.ready()

    async def step(self, name: str, action: Any) -> StepRecord:
        """An agent never moves alone: `SharedEpisode.move` does it for all."""
        raise InternalError(f"{name}: agent {self.agent} of a match was to move alone, by {action!r:.60}")

    def copy(self, turns: int) -> RunningEpisode:
        """See `RunningEpisode`; the match of the copy has this agent alone."""
        return AgentView(self.match.copy(turns, f"{self.agent} alone"), self.agent)

    def close(self) -> None:
        """See `RunningEpisode`."""
        self.match.close()
