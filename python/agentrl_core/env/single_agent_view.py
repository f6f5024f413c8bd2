"""Single-agent view of a multi-agent environment, so that `check` can play it like any other."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from agentrl_core.env.base import Content, StepResult, Task, as_messages
from agentrl_core.exceptions import InvalidInputError


class SingleAgentView:
    """Single-agent view of an environment: all moving agents take the same action."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "restore":  # which takes actions by agent
            raise AttributeError(name)
        return getattr(self._environment, name)

    def tasks(self, count: int, **options: Any) -> list[Task]:
        """Return the tasks of the environment."""
        tasks: list[Task] = self._environment.tasks(count, **options)
        return tasks

    def reset(self, task: Task, seed: int) -> Any:
        """Return a new episode of the environment as a single-agent episode."""
        episode = self._environment.reset(task, seed)
        return _later(episode) if inspect.isawaitable(episode) else SingleAgentEpisode(episode)


class SingleAgentEpisode:
    """Single-agent view of a multi-agent episode: all moving agents take the same action."""

    def __init__(self, episode: Any) -> None:
        self._episode = episode
        self._agents = dict(episode.observations)
        self.observation = _merged(self._agents)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "observations":
            raise AttributeError(name)
        return getattr(self._episode, name)

    def step(self, action: str) -> Any:
        """Let all moving agents take the same action, and return their results combined into one."""
        moves = list(self._episode.turn_of())
        outcomes = self._episode.step(dict.fromkeys(moves, action))
        unknown = [agent for agent in (*moves, *outcomes) if agent not in self._agents]
        silent = [agent for agent in moves if agent not in outcomes]
        if unknown or silent:
            problem = (
                f"has agent {unknown[0]!r}, which is not in observations"
                if unknown
                else f"has no result for agent {silent[0]!r}"
            )
            raise InvalidInputError(
                f"the joint step {problem}; give an env.StepResult for each agent that acts, and for no other"
            )
        for outcome in outcomes.values():
            if not isinstance(outcome, StepResult):
                return outcome
        over = not self._episode.turn_of()
        observations = {
            agent: outcome.observation for agent, outcome in outcomes.items() if outcome.observation is not None
        }
        rewards = [outcome.reward for outcome in outcomes.values() if outcome.reward is not None]
        facts = [outcome.facts for outcome in outcomes.values() if outcome.facts is not None]
        return StepResult(
            None if over else _merged(observations),
            reward=sum(rewards) if rewards else None,
            terminated=over,
            facts={name: value for each in facts for name, value in each.items()} or None,
        )


async def _later(episode: Any) -> SingleAgentEpisode:
    return SingleAgentEpisode(await episode)


def _merged(observations: Mapping[str, Content]) -> Content:
    """Return the observations of all agents as messages, in the order of their names."""
    messages = [message for agent in sorted(observations) for message in as_messages(observations[agent])]
    return messages or "nothing is said"
