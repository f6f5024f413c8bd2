"""Multi-agent episodes: one episode with one branch per agent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl_core.env.base import Content, Context, as_messages
from agentrl_core.env.step_record import EpisodeError, JointStep, StepRecord, agent_state_key
from agentrl_core.exceptions import InternalError, InvalidInputError
from agentrl_core.rollout.async_tasks import unawaited
from agentrl_core.rollout.branch_record import JOINT_MOVE
from agentrl_core.rollout.runtime import RunningEpisode

if TYPE_CHECKING:
    from agentrl_core.rollout.turn import Turn


class SharedEpisode:
    """A multi-agent episode and its branches.

    Args:
        episode: the running episode.
        name: its name in the rollout log: that of the first branch.
    """

    def __init__(self, episode: RunningEpisode, name: str) -> None:
        self.episode = episode
        self.branches: list[Any] = []
        """The branches of the episode; each is a `Branch`, which imports this file."""
        self._name = name
        self._moves = 0
        self._begun = asyncio.Lock()
        self._moving = asyncio.Lock()

    @property
    def acted(self) -> int:
        """Number of joint moves that the environment has answered."""
        return len(self.episode.answers)

    @property
    def begin(self) -> JointStep:
        """Return the first observation of each agent.

        Raises:
            InvalidInputError: the environment is single-agent.
        """
        begin: Any = self.episode.observation
        if not isinstance(begin, JointStep):
            raise InvalidInputError(
                f"branch {self._name}: its environment has one agent; to share an episode, use an environment whose "
                f"reset returns an env.MultiEpisode"
            )
        return begin

    @property
    def turn_of(self) -> tuple[str, ...]:
        """The agents that move next."""
        answers: Sequence[Any] = self.episode.answers
        return (answers[-1] if answers else self.begin).turn_of

    def results_of(self, agent: str, first: int, last: int) -> list[StepRecord]:
        """Return what the environment returned to an agent in a range of joint moves."""
        answers: Sequence[Any] = self.episode.answers[first:last]
        return [joint.of[agent] for joint in answers if agent in joint.of]

    def results_of_other_moves(self, agent: str) -> list[StepRecord]:
        """Return what the environment returned to an agent during moves of other agents."""
        moves: Sequence[Any] = self.episode.moves
        joint = zip(moves, self.episode.answers, strict=True)
        return [answer.of[agent] for move, answer in joint if agent in answer.of and agent not in move]  # type: ignore[attr-defined]

    def is_active(self, agent: str) -> bool:
        """Return whether the episode goes on for an agent: it was neither terminated nor truncated."""
        answers = [answer.outcome for answer in self.results_of(agent, 0, self.acted)]
        return not any(outcome.terminated or outcome.truncated for outcome in answers)

    async def reset(self) -> None:
        """Reset the episode, once for all agents."""
        async with self._begun:
            await self.episode.reset(f"{self._name}/begin")

    async def ready(self) -> None:
        """Replay the recorded moves in the environment if needed."""
        async with self._begun:
            await self.episode.ready(self._answer_name())

    def copy(self, acted: int, name: str) -> SharedEpisode:
        """Return a copy of the episode after the first `acted` moves, with a name in the rollout log."""
        return SharedEpisode(self.episode.copy(acted), name)

    def close(self) -> None:
        """Close the episode if all its branches have ended."""
        if all(branch.over for branch in self.branches):
            self.episode.close()

    async def move(self, branches: Sequence[Any]) -> list[Turn]:
        """Submit the open actions of some branches as one joint move, and return the turns in the same order.

        Raises:
            InvalidInputError: two branches have the same agent, or another branch has an open action.
        """
        moving = [branch for branch in branches if not branch.over]
        texts = {branch.agent: branch.path.action for branch in moving}
        if len(texts) < len(moving):
            agents = [branch.agent for branch in moving]
            repeated = next(agent for agent in agents if agents.count(agent) > 1)
            raise InvalidInputError(
                f"match {self._name}: two branches of agent {repeated!r} cannot move together; give one per agent"
            )
        for other in self.branches:
            if other.has_open_action and not other.over and other not in moving:
                raise InvalidInputError(
                    f"branch {other.name} has an open action, but moves are submitted without it; submit the open "
                    "actions of an episode together: group.turn([...])"
                )
        joint = await self._answered(texts) if moving else None
        turns = [branch._take_result(self._answer_of(branch, joint), branch.path.text) for branch in branches]
        if joint is None:
            return turns
        for other in self.branches:
            if other not in moving and not other.over and other.agent in joint.of:
                _take_observation(other, joint.of[other.agent])
        if not joint.turn_of:
            for other in self.branches:
                end_with_episode(other, "finished")
        return turns

    def _answer_of(self, branch: Any, joint: JointStep | None) -> StepRecord | None:
        """Return an agent's part of a joint answer, with the number of the move if the program declares that fact."""
        answer: StepRecord | None = None if joint is None else joint.of.get(branch.agent)
        if answer is None or branch.record.levels.get(JOINT_MOVE) != "step":
            return answer
        facts = {**(answer.outcome.facts or {}), JOINT_MOVE: float(self.acted - 1)}
        return replace(answer, outcome=replace(answer.outcome, facts=facts))

    def _answer_name(self) -> str:
        """Return the name of the next joint answer in the rollout log."""
        return f"{self._name}/answer{self._moves}"

    async def _answered(self, texts: Mapping[str, str]) -> JointStep | None:
        """Step the episode by a joint move, and return the result; None: the episode and all its branches failed."""
        name = self._answer_name()
        self._moves += 1
        async with unawaited(self._moving, self._name):
            try:
                return await self.episode.step(name, texts)  # type: ignore[return-value]
            except EpisodeError as error:
                for branch in self.branches:
                    if not branch.over:
                        branch._fail(str(error))
                return None


def _take_observation(branch: Any, answer: StepRecord) -> None:
    """Add the observation and reward from another agent's move to a branch."""
    outcome = answer.outcome
    branch.record.add_reward_and_facts(outcome)
    if outcome.terminated or outcome.truncated:
        end_with_episode(branch, "finished" if outcome.terminated else "truncated")
    elif branch.path.here is not None:
        branch.path.add_answer(answer)


def end_with_episode(branch: Any, status: str) -> None:
    """End a branch because its episode has ended, or because its agent has no further part in it."""
    if branch.turns and not branch.over:
        branch._end(status)
    elif not branch.over:
        branch._end("aborted", "it never moved")


class AgentView:
    """The view of one agent on a multi-agent episode: the episode of its branch."""

    def __init__(self, match: SharedEpisode, agent: str) -> None:
        self.match = match
        self.agent = agent

    @property
    def title(self) -> str:
        """Title of the environment, for messages."""
        return self.match.episode.title

    @property
    def observation(self) -> Content:
        """Observations of the agent before its first action."""
        begin = self.match.begin
        if self.agent not in begin.of:
            known = ", ".join(map(repr, begin.of))
            raise InvalidInputError(f"start: agent={self.agent!r} is not an agent of the episode; use one of: {known}")
        first: Content = begin.of[self.agent]
        results = self.match.results_of(self.agent, 0, self.match.acted)
        later = [answer.outcome.observation for answer in results if answer.outcome.observation is not None]
        return [message for content in (first, *later) for message in as_messages(content)] if later else first

    @property
    def state_key(self) -> bytes | str:
        """Key of the agent's first state."""
        return agent_state_key(self.agent, self.match.episode.state_key)

    @property
    def tools(self) -> Any:
        """Schemas of the tools in the agent's prompt."""
        return self.match.episode.tools

    @property
    def contexts(self) -> Sequence[Context]:
        """No contexts, since each agent has one conversation."""
        return ()

    @property
    def answers(self) -> Sequence[StepRecord]:
        """The environment's answers to all joint moves."""
        return self.match.episode.answers

    @property
    def handle(self) -> Any:
        """The episode object of the environment; None: it has to be rebuilt first, by `ready`."""
        return self.match.episode.handle

    @property
    def moves(self) -> Sequence[Any]:
        """All joint moves of the episode."""
        return self.match.episode.moves

    async def reset(self, name: str) -> None:
        """Reset the episode, once for all agents."""
        del name
        await self.match.reset()

    async def ready(self, name: str) -> None:
        """Replay the moves of all agents if needed; the rollout log has them under one name."""
        del name
        await self.match.ready()

    async def step(self, name: str, action: Any) -> StepRecord:
        """Raise an error: agents do not step alone, `SharedEpisode.move` moves all of them."""
        raise InternalError(
            f"{name}: agent {self.agent!r} of a multi-agent episode cannot move alone (action {action!r:.60}); this "
            "is a bug in agentrl_core, please report it"
        )

    def copy(self, turns: int) -> RunningEpisode:
        """Return a copy of the episode after the first `turns` moves, with a view of this agent only."""
        return AgentView(self.match.copy(turns, f"{self.agent} alone"), self.agent)

    def close(self) -> None:
        """Close the episode if all its branches have ended."""
        self.match.close()


def join_episode(branch: Any, match: SharedEpisode | None = None) -> SharedEpisode:
    """Return a branch's multi-agent episode; a branch that is in none joins `match`, by default a new one."""
    if not isinstance(branch.episode, AgentView):
        match = SharedEpisode(branch.episode, branch.name) if match is None else match
        match.branches.append(branch)
        branch.episode = AgentView(match, branch.agent)
    joined: SharedEpisode = branch.episode.match
    return joined
