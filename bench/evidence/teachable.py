"""Episodes of all worlds: they count turns, and return the best action and a wrong one for demonstrations."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from agentrl_core import env

FACTS: Mapping[str, env.ExtraColumn] = {
    "points": env.ExtraColumn("trajectory"),
    "tool_calls": env.ExtraColumn("trajectory"),
    "reward.format": env.ExtraColumn("trajectory"),
    "reward.answer": env.ExtraColumn("trajectory"),
    "reward.correct": env.ExtraColumn("trajectory"),
}
"""Facts of every world.

They are points (1: solved), the number of accepted actions, whether all actions were accepted, and the points under two
more names that recipes read.
"""


class TeachableEpisode(env.base.Episode, Protocol):
    """An episode from which demonstrations are written."""

    def best(self) -> str:
        """Return the best action in this state."""
        ...

    def slip(self, rng: random.Random) -> str:
        """Return a possible action that is usually not the best."""
        ...


class Turns:
    """Base of episodes: counts turns and builds results."""

    def __init__(self, max_turns: int) -> None:
        self._turns_left = max_turns
        self._accepted = self._refused = 0

    def answered(self, observation: str, flags: int = 0) -> env.StepResult:
        """Return the result of an accepted action that does not end the episode."""
        self._accepted += 1
        return self._next(observation, flags)

    def refused(self, observation: str) -> env.StepResult:
        """Return the result of an invalid action."""
        self._refused += 1
        return self._next(observation, env.StepFlag.FORMAT_ERROR)

    def ended(self, *, success: bool) -> env.StepResult:
        """Return the result of an action that ends the episode."""
        self._accepted += 1
        return env.StepResult(
            reward=float(success), terminated=True, success=success, facts=self._facts(success=success)
        )

    def _next(self, observation: str, flags: int) -> env.StepResult:
        self._turns_left -= 1
        if self._turns_left:
            return env.StepResult(observation, flags=flags)
        return env.StepResult(reward=0.0, truncated=True, success=False, flags=flags, facts=self._facts(success=False))

    def _facts(self, *, success: bool) -> dict[str, float | str | bytes]:
        points = float(success)
        return {
            **dict.fromkeys(("points", "reward.answer", "reward.correct"), points),
            "tool_calls": float(self._accepted),
            "reward.format": float(not self._refused),
        }


def checked(start: int, count: int, limit: int) -> range:
    """Return the numbers of the requested tasks.

    Raises:
        ValueError: there are fewer.
    """
    if start < 0 or count < 0 or start + count > limit:
        raise ValueError(f"tasks {start} to {start + count} were asked for, and there are {limit}; ask for fewer")
    return range(start, start + count)
