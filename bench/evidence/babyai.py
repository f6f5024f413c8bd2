"""BabyAI in text: put one object next to another, in two rooms, with a view of seven by seven cells."""

from __future__ import annotations

import random
import re
from typing import Any, ClassVar

from played import Played
from teachable import FACTS, checked

from agentrl_core import env

GAME = "BabyAI-PutNextS4N1-v0"
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
_MAX_TURNS = 14
_TASKS = 100_000
_OTHER_WORDS = (
    "mission put the next to you see nothing a an ahead left right wall is carry open closed locked door key ball box "
    "red green blue purple yellow grey"
)
_NOT_SHOWN = re.compile(r"Your |Actions: .*|[^\w\s]")


def words_of(text: str) -> str:
    """Return a text without capitals, punctuation and the list of actions."""
    return " ".join(_NOT_SHOWN.sub(" ", text).lower().split())


class BabyAI:
    """Missions such as `put the red ball next to the grey key`, by `env.MiniGrid`.

    Rooms, objects and mission follow from the number of the task. Actions are those of MiniGrid. The reward is 1 for
    the mission, without MiniGrid's discount by turns.

    Args:
        held_out: number of held-out missions; there are 100 000 for training.
    """

    runs: ClassVar = "inline"
    facts: ClassVar = FACTS
    words: ClassVar = tuple(
        dict.fromkeys((*" ".join(ACTIONS).split(), *map(str, range(1, 8)), *_OTHER_WORDS.split(), "no", "action"))
    )

    def __init__(self, *, held_out: int = 512) -> None:
        self._world = env.MiniGrid(GAME, max_turns=_MAX_TURNS + 1, held_out=held_out)
        self._limits = {"train": _TASKS, "held_out": held_out}

    def tasks(self, count: int, *, split: env.base.Split = "train", start: int = 0) -> list[env.Task]:
        """Return missions of a split."""
        checked(start, count, self._limits[split])
        return self._world.tasks(count, split=split, start=start)

    def reset(self, task: env.Task, seed: int) -> Mission:
        """Start a mission."""
        return Mission(self._world.reset(task, seed), task)


class Mission(Played):
    """One mission. For demonstrations, BabyAI's bot follows it in an equal game, with the agent's observations only."""

    def __init__(self, game: Any, task: env.Task) -> None:
        super().__init__(game, _MAX_TURNS, words_of)
        self._task, self._taken = task, list[int]()
        self._bot: Any = None
        self._followed, self._advice = 0, 0

    def step(self, action: str) -> env.StepResult:
        """Take an action."""
        if action in ACTIONS:
            self._taken.append(ACTIONS.index(action))
        return super().step(action)

    def best(self) -> str:
        """Return the action of the bot."""
        if self._bot is None:
            import gymnasium
            from minigrid.utils.baby_ai_bot import BabyAIBot

            payload: Any = self._task.payload
            twin = gymnasium.make(GAME, disable_env_checker=True)
            twin.reset(seed=payload["seed"])
            make: Any = BabyAIBot
            self._bot = make(twin.unwrapped)
            self._advice = self._bot.replan(None)
        for action in self._taken[self._followed :]:
            self._bot.mission.step(action)
            self._advice = self._bot.replan(action)
        self._followed = len(self._taken)
        return ACTIONS[self._advice]

    def slip(self, rng: random.Random) -> str:
        """Return a move."""
        return rng.choice(ACTIONS[:3])
