"""An episode as a trajectory plays it: what the environment answers is checked, remembered and can be replayed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NoReturn

import numpy as np

from agentrl_core.env.base import Environment, Episode, Outcome, Task
from agentrl_core.exceptions import InvalidInputError

_LARGEST_FLAGS = 2**32 - 1


@dataclass(frozen=True)
class Turn:
    """An action, what it gave, and the state that the episode went on in (None where it was over)."""

    action: str
    outcome: Outcome
    state_key: bytes | str | None


class Play:
    """An episode of an environment, with everything that it answered so far.

    Args:
        environment: gives the episode.
        task: what is played.
        seed: of the episode.

    Raises:
        InvalidInputError: the environment gives something that cannot be; the message names environment, task, step,
            value and remedy.
    """

    def __init__(self, environment: Environment, task: Task, seed: int) -> None:
        self.environment = environment
        self.task = task
        self.seed = seed
        self.turns: list[Turn] = []
        self._place = "reset"
        self._episode: Episode = environment.reset(task, seed)
        for name in ("observation", "step", "state_key"):
            if not hasattr(self._episode, name):
                self._refuse(
                    f"reset gave {_typed(self._episode)}, which has no {name!r}",
                    "return an Episode: an object with observation, step(action) and state_key()",
                )
        self.observation = self._text(self._episode.observation, "Episode.observation", "give a text")
        self.state_key = self._state()

    @property
    def paid(self) -> list[float]:
        """The rewards of the actions that were paid something."""
        return [turn.outcome.reward for turn in self.turns if turn.outcome.reward is not None]

    @property
    def info(self) -> dict[str, object] | None:
        """The facts of the last action, and those of the earlier ones behind them."""
        facts = [turn.outcome.info for turn in self.turns]
        earlier = {"earlier_steps": facts[:-1]} if any(facts[:-1]) else {}
        last = facts[-1] if facts else None
        return {**(last or {}), **earlier} if earlier or last is not None else None

    def step(self, action: str) -> Outcome:
        """Give an action to the environment; what it answered, checked and kept."""
        self._place = f"step {len(self.turns) + 1}"
        outcome = self._checked(self._episode.step(action))
        goes_on = not (outcome.terminated or outcome.truncated)
        self.turns.append(Turn(action, outcome, self._state() if goes_on else None))
        return outcome

    def branch(self, count: int) -> tuple[Play, str]:
        """A fresh episode after the first `count` actions of this one.

        Returns:
            The episode, with this one's turns as its own, and what its replay gave that this one did not see: a text
            that is empty where there is nothing.
        """
        play = Play(self.environment, self.task, self.seed)
        difference = _difference("reset", (self.observation, self.state_key), (play.observation, play.state_key))
        for turn in self.turns[:count]:
            if difference:
                break
            play.step(turn.action)
            difference = _difference(f"step {len(play.turns)}", _facts(turn), _facts(play.turns[-1]))
        play.turns = self.turns[:count]
        return play, difference

    def _checked(self, outcome: Any) -> Outcome:
        if not isinstance(outcome, Outcome):
            gym = ": observation, reward, terminated, truncated and info, by name" if isinstance(outcome, tuple) else ""
            self._refuse(f"step gave {_typed(outcome)}", f"return an env.Outcome{gym}")
        ends = {name: self._verdict(getattr(outcome, name), name) for name in ("terminated", "truncated")}
        remedy = "give one text, or None where the episode is over"
        if outcome.observation is not None:
            self._text(outcome.observation, "Outcome.observation", remedy)
        elif not any(ends.values()):
            self._refuse(
                "Outcome.observation is None, but the episode goes on (terminated and truncated are False)",
                "give the next observation, or end the episode with terminated=True or truncated=True",
            )
        flags = outcome.flags
        if not isinstance(flags, Integral) or not 0 <= int(flags) <= _LARGEST_FLAGS:
            self._refuse(
                f"Outcome.flags is {_typed(flags)}", "give env.StepFlag bits, a whole number from 0 to 2^32 - 1"
            )
        if outcome.info is not None and not isinstance(outcome.info, Mapping):
            self._refuse(f"Outcome.info is {_typed(outcome.info)}", "give a table of facts, or None")
        return Outcome(
            observation=outcome.observation,
            reward=self._reward(outcome.reward),
            flags=int(flags),
            success=None if outcome.success is None else self._verdict(outcome.success, "success"),
            info=outcome.info,
            **ends,
        )

    def _text(self, value: object, name: str, remedy: str) -> str:
        if not isinstance(value, str):
            self._refuse(f"{name} is {_typed(value)}", remedy)
        return value

    def _reward(self, value: Any) -> float | None:
        if value is None:
            return None
        try:
            number = math.inf if isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError):
            number = math.inf
        if math.isinf(number):
            self._refuse(
                f"Outcome.reward is {_typed(value)}",
                "give a finite number, None where nothing was paid, or NaN where the reward is not known",
            )
        return number

    def _verdict(self, value: object, name: str) -> bool:
        if not (isinstance(value, (bool, np.bool_)) or (isinstance(value, Integral) and value in (0, 1))):
            self._refuse(f"Outcome.{name} is {_typed(value)}", "give True or False")
        return bool(value)

    def _state(self) -> bytes | str:
        key = self._episode.state_key()
        if not isinstance(key, (bytes, str)):
            self._refuse(f"state_key() gave {_typed(key)}", "return bytes: equal bytes are the same state")
        return key

    def _refuse(self, found: str, remedy: str) -> NoReturn:
        place = f"environment {type(self.environment).__name__}, {self._place} of task {self.task.task_id!r}"
        raise InvalidInputError(f"{place}: {found}; {remedy}")


def _facts(turn: Turn) -> tuple[object, ...]:
    return (turn.outcome.observation, turn.state_key, turn.outcome.terminated, turn.outcome.truncated)


def _difference(place: str, before: tuple[object, ...], now: tuple[object, ...]) -> str:
    """The first of the facts that the replay gave otherwise."""
    for name, old, new in zip(("observation", "state_key", "terminated", "truncated"), before, now, strict=False):
        if old != new:
            return f"{name} of {place} was {_shown(old)} and is {_shown(new)} in the replay"
    return ""


def _shown(value: object) -> str:
    """A value and its type, short enough for one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _typed(value: object) -> str:
    return f"{_shown(value)} (a {type(value).__name__})"
